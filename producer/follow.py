"""Read a job: its state, its events, its sound; at once, or as they come."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from broker_schemas import keys
from broker_schemas.connection import BLOCK_MS
from broker_schemas.events import Event, decode
from broker_schemas.job import BrokenLog, JobState, fold

_STATES_KEPT = 4096
_READ_AT_ONCE = 4  # a song's chunks are half a MiB each, and each follower holds a read of them
_ANEW_AT_MOST = 3


class Unknown(LookupError):
    """No such job: it never was, or it has expired."""


class Expired(LookupError):
    """The job's keys went while it was being followed."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One window's sound: interleaved 16-bit little-endian PCM. `start` is its first sample, per channel."""

    index: int
    pcm: bytes
    start: int
    sha256: str

    @classmethod
    def of(cls, entry: tuple[bytes, dict[bytes, bytes]]) -> Chunk:
        entry_id, fields = entry
        index = int(entry_id.split(b"-")[0]) - 1
        return cls(index, fields[b"pcm"], int(fields[b"start"]), fields[b"sha256"].decode())


class Jobs:
    """Reads jobs. Keeps the newest states, so that polling reads only what is new."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._states: OrderedDict[str, tuple[JobState, bytes]] = OrderedDict()  # with the newest event's bytes

    async def state(self, job: str) -> JobState:
        """The fold of the job's log; raises Unknown."""
        known, newest = self._states.get(job, (JobState(), b""))
        # From the newest known event on: if that is not where it was, the broker has lost writes, and all is read anew.
        entries = await self._client.xrange(keys.log(job), min=f"{known.seq}-0")
        if known.seq and entries and entries[0][1][b"e"] == newest:
            entries = entries[1:]
        elif known.seq:
            known, entries = JobState(), await self._client.xrange(keys.log(job))
        if not known.seq and not entries:
            self.forget(job)
            raise Unknown(job)
        state = fold((decode(entry[b"e"]) for _, entry in entries), known)
        if entries:
            newest = entries[-1][1][b"e"]
        self._states[job] = (state, newest)
        self._states.move_to_end(job)
        if len(self._states) > _STATES_KEPT:
            self._states.popitem(last=False)
        return state

    def forget(self, job: str) -> None:
        self._states.pop(job, None)

    async def events(self, job: str) -> list[Event]:
        """The whole log; raises Unknown."""
        entries = await self._client.xrange(keys.log(job))
        if not entries:
            raise Unknown(job)
        return [decode(entry[b"e"]) for _, entry in entries]

    async def chunks(self, job: str) -> list[Chunk]:
        """All sound there is so far."""
        return [Chunk.of(entry) for entry in await self._client.xrange(keys.audio(job))]

    async def follow(
        self, job: str, *, after_seq: int = 0, after_chunk: int = -1, sound: bool = True
    ) -> AsyncGenerator[Event | Chunk, None]:
        """Events after `after_seq` and chunks after `after_chunk`, as they come, until the job is final and drained.

        Within what one read brings, events come first. Any number may follow, from any time on.

        Raises:
            Unknown: there is no such job.
            BrokenLog: the log's events cannot follow one another, however often it is read.
            Expired: the job's keys went in the meantime.
        """
        state, newest = JobState(), b""
        told: list[int] = []  # what of each event has been told or skipped, by seq
        heard = after_chunk + 1  # chunks given out or skipped
        anew = 0  # times that the log was read anew with nothing new in it
        while not (state.status.final and (not sound or heard >= state.chunks)):
            cursors = {keys.log(job): f"{state.seq}-0"}
            if sound:
                cursors[keys.audio(job)] = f"{heard}-0"
            reply = await self._client.xread(cursors, count=_READ_AT_ONCE, block=BLOCK_MS)
            streams = {name.decode(): entries for name, entries in reply}
            news = streams.get(keys.log(job), [])
            unsure = not reply or (news and state.seq)
            if unsure and not await self._still_there(job, state, newest):
                if not await self._client.exists(keys.log(job)):
                    raise Expired(job) if state.seq else Unknown(job)
                state, anew = JobState(), anew + 1
                continue
            for _, entry in news:
                raw = entry[b"e"]
                event = decode(raw)
                try:
                    state, newest = fold([event], state), raw
                except BrokenLog:  # a broker that lost its newest writes goes on with others
                    if anew > _ANEW_AT_MOST:
                        raise
                    state, anew = JobState(), anew + 1
                    break
                place, mark = event.seq - 1, hash(raw)
                if place < len(told):
                    known = told[place] == mark
                    if not known:
                        told[place:] = [mark]
                else:
                    known = event.seq <= after_seq
                    told.append(mark)
                if not known:
                    anew = 0
                    yield event
            for entry in streams.get(keys.audio(job), ()):
                chunk = Chunk.of(entry)
                heard, anew = chunk.index + 1, 0
                yield chunk

    async def _still_there(self, job: str, state: JobState, newest: bytes) -> bool:
        """Whether the newest event that was read is where it was: a broker may have lost it."""
        entries = await self._client.xrange(keys.log(job), f"{state.seq}-0", f"{state.seq}-0")
        return bool(entries) and entries[0][1][b"e"] == newest
