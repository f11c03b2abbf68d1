"""Server-sent events, read line by line."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    event: str
    data: str
    id: str | None

    def json(self) -> dict[str, Any]:
        return json.loads(self.data)

    def pcm(self) -> bytes:
        """An audio chunk's samples: interleaved 16-bit little-endian."""
        return base64.b64decode(self.json()["audio"])


def messages(lines: Iterable[str]) -> Iterator[Message]:
    """The messages of a stream. Comments, which keep the connection alive, are skipped; so is a message cut short."""
    event, data, id_ = "message", [], None
    for line in lines:
        if not line:
            if data:
                yield Message(event, "\n".join(data), id_)
            event, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            event = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            id_ = value
