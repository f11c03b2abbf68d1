"""What each worker says of itself in `sl:workers`, and which of them are alive. Times by the broker's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from broker_schemas.codec import DecodeError, pack, unpack

SILENT_MS = 10_000  # a worker silent for so long is not counted on
DEAD_MS = 60_000  # and after so long it is forgotten


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A worker's state, every two seconds or oftener.

    at: when it was sent, Unix milliseconds by the broker's clock. slots: jobs that it can hold. held: jobs that it
    holds. oldest_s: how long it has held the one of them that it took first, in seconds. draining: whether it takes no
    more. counts: what it did since its start, by name.
    """

    worker: str
    role: str
    model: str
    profile: str
    at: int
    slots: int = 0
    held: int = 0
    oldest_s: float = 0.0
    draining: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    def pack(self) -> bytes:
        return pack(asdict(self))

    def alive(self, now_ms: int) -> bool:
        return now_ms - self.at < SILENT_MS

    @property
    def state(self) -> str:
        """working, draining, or drained: then it can be stopped with nothing in hand."""
        if not self.draining:
            return "working"
        return "draining" if self.held else "drained"


def read_heartbeats(rows: Mapping[bytes, bytes]) -> list[Heartbeat]:
    """The heartbeats of the hash `keys.WORKERS`; rows that cannot be read are left out, and fields of newer workers."""
    known = {each.name for each in fields(Heartbeat)}
    beats = []
    for raw in rows.values():
        try:
            said = unpack(raw)
            beats.append(Heartbeat(**{name: value for name, value in said.items() if name in known}))
        except (DecodeError, TypeError, AttributeError):
            continue
    return beats


def living(rows: Mapping[bytes, bytes], now_ms: int) -> list[Heartbeat]:
    """Those of the hash that are alive, by model, role and name."""
    alive = (beat for beat in read_heartbeats(rows) if beat.alive(now_ms))
    return sorted(alive, key=lambda beat: (beat.model, beat.role, beat.worker))


def broker_ms(time: tuple[int, int]) -> int:
    """Redis's TIME reply as Unix milliseconds."""
    seconds, microseconds = time
    return seconds * 1000 + microseconds // 1000
