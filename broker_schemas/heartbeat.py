"""What each worker says of itself in `sl:workers`, and which of them are alive. Times by the broker's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from broker_schemas.codec import DecodeError, pack, unpack

SILENT_MS = 10_000  # a worker silent for so long is not counted on
DEAD_MS = 60_000  # and after so long it is forgotten


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """`at`: when it was sent, Unix milliseconds by the broker's clock."""

    worker: str
    role: str
    model: str
    profile: str
    at: int

    def pack(self) -> bytes:
        return pack(asdict(self))

    def alive(self, now_ms: int) -> bool:
        return now_ms - self.at < SILENT_MS


def read_heartbeats(rows: Mapping[bytes, bytes]) -> list[Heartbeat]:
    """The heartbeats of the hash `keys.WORKERS`; rows that cannot be read are left out."""
    beats = []
    for raw in rows.values():
        try:
            beats.append(Heartbeat(**unpack(raw)))
        except (DecodeError, TypeError):
            continue
    return beats


def broker_ms(time: tuple[int, int]) -> int:
    """Redis's TIME reply as Unix milliseconds."""
    seconds, microseconds = time
    return seconds * 1000 + microseconds // 1000
