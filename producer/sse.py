"""Server-sent events, read line by line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    event: str
    data: str
    id: str | None

    def json(self) -> dict[str, Any]:
        return json.loads(self.data)


class Reader:
    """Makes messages of a stream's lines. Comments, which keep the connection alive, are skipped."""

    def __init__(self) -> None:
        self._event = "message"
        self._lines: list[str] = []
        self._id: str | None = None

    def line(self, line: str) -> Message | None:
        """The message that the line ends, if it ends one. One that is cut short never comes."""
        if not line:
            whole = Message(self._event, "\n".join(self._lines), self._id) if self._lines else None
            self._event, self._lines = "message", []
            return whole
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._event = value
        elif field == "data":
            self._lines.append(value)
        elif field == "id":
            self._id = value
        return None
