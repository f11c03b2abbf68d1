"""What workers and archivers say of themselves in `sl:workers`, and who is alive. Times by the broker's clock."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from broker_schemas.codec import DecodeError, pack, unpack

SILENT_MS = 10_000  # a worker silent for so long is not counted on
DEAD_MS = 60_000  # and after so long it is forgotten


def worker_name(role: str) -> str:
    """A name that no other worker has had: role, host, process, and some letters."""
    return f"{role}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def named_here(worker: str, role: str) -> bool:
    """Whether `worker_name` made the name on this host."""
    return worker.rsplit("-", 2)[0] == f"{role}-{socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A worker's state, every two seconds or oftener.

    model, profile: "" where it is an archiver. at: when it was sent, Unix milliseconds by the broker's clock. slots:
    jobs that it can hold. held: jobs that it holds. oldest_s: how long it has held the one of them that it took first,
    in seconds. draining: whether it takes no more. stuck: whether nothing that it holds goes on, and it takes no more
    until it is started anew. counts: what it did since its start, by name.
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
    stuck: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    def pack(self) -> bytes:
        return pack(asdict(self))

    def alive(self, now_ms: int) -> bool:
        return now_ms - self.at < SILENT_MS

    @property
    def state(self) -> str:
        """working, stuck, draining, or drained: then it can be stopped with nothing in hand."""
        if self.stuck:
            return "stuck"
        if not self.draining:
            return "working"
        return "draining" if self.held else "drained"


def read_heartbeats(rows: Mapping[bytes, bytes]) -> list[Heartbeat]:
    """The heartbeats of the hash `keys.WORKERS`; rows that cannot be read are left out, and fields of newer ones."""
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
