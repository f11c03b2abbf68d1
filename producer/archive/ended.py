"""A job that is over, as the broker has it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from broker_schemas import keys
from broker_schemas.events import FINAL_TYPES, AudioChunk, Event, decode
from broker_schemas.job import JobState, Status, fold

_CHUNKS_AT_ONCE = 4  # a song's are half a MiB each


class Gone(LookupError):
    """The job's keys are gone."""


class NotOver(Exception):
    """The job goes on: the broker may have lost its end."""


class BrokenSound(ValueError):
    """The audio stream is not what the log says of it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A final job. `events`: up to its end, so that they are the same whenever they are read."""

    state: JobState
    events: tuple[Event, ...]

    @property
    def sounds(self) -> bool:
        """Whether all of its sound is there."""
        return self.state.status is Status.COMPLETED


def read_ended(client: Any, job: str) -> Ended:
    """Raises Gone, NotOver, BrokenLog, DecodeError."""
    events: list[Event] = []
    for _, entry in client.xrange(keys.log(job)):
        events.append(decode(entry[b"e"]))
        if events[-1].type in FINAL_TYPES:
            return Ended(fold(events), tuple(events))
    raise NotOver(f"job {job} goes on") if events else Gone(f"job {job} is gone")


def read_sound(client: Any, ended: Ended) -> bytes:
    """A completed job's interleaved 16-bit little-endian PCM. Raises Gone, BrokenSound."""
    told = [event.payload for event in ended.events if isinstance(event.payload, AudioChunk)]
    stream, pieces, after = keys.audio(ended.state.id), [], "-"
    while entries := client.xrange(stream, min=after, count=_CHUNKS_AT_ONCE):
        pieces += [entry[b"pcm"] for _, entry in entries]
        after = f"({entries[-1][0].decode()}"
    if [hashlib.sha256(pcm).hexdigest() for pcm in pieces] == [chunk.sha256 for chunk in told]:
        return b"".join(pieces)
    if not client.exists(keys.log(ended.state.id)):
        raise Gone(f"job {ended.state.id} is gone")
    raise BrokenSound(f"the audio stream of job {ended.state.id} is not what its log says")
