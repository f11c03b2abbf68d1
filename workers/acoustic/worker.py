"""The acoustic worker: a window at a time, or of several jobs at once, for whoever runs dry first."""

from __future__ import annotations

import hashlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import redis

from broker_schemas import keys
from broker_schemas.codec import DecodeError
from broker_schemas.events import AudioChunk, JobCompleted, decode
from broker_schemas.job import BrokenLog, fold
from workers.acoustic.carry import Carry
from workers.acoustic.conditioning import Conditioning, Frames, LoggedCodes, MissingFrames
from workers.acoustic.schedule import Batches, Waiting
from workers.aside import Aside
from workers.models.family import AcousticModel, Decoded, Dropped, Family, Window
from workers.owning import Entries, Owned, Ownership
from workers.settings import AcousticSettings
from workers.talker.windows import Plan

logger = logging.getLogger(__name__)

_AWAY_S = 0.5  # before the broker is asked again
_LOOK_S = 0.25  # how often jobs are looked for that no bell was rung for
# How long the loop waits for what it asks of the broker, of a window's time: what comes later is for the next turn.
_PATIENCE = 0.1
_REREAD_S = 1.0  # a rung bell may be missed: every log is read again after so long


@dataclass(slots=True, eq=False)
class Sounding:
    """A job whose windows this worker decodes."""

    owned: Owned
    plan: Plan
    carry: Carry
    conditioning: Frames
    since: float
    heard_from: float | None
    decoded: int  # windows that `state` comes after
    state: dict[str, Any]  # the model's
    ready_at: float | None = None  # since when its next window could be decoded
    done: bool = False  # nothing more is decoded; its last words are being written

    @property
    def windows(self) -> int:
        """How many windows the spans so far complete."""
        state = self.owned.state
        return self.plan.count(state.frames) if state.terminal else state.spans

    @property
    def job(self) -> str:
        return self.owned.job


@dataclass(frozen=True, slots=True)
class Read:
    """What was read of a job's log, from the newest event on that was known."""

    sounding: Sounding
    entries: Entries


class AcousticWorker:
    """The main loop: read what is new, choose windows, decode them, publish each chunk with its carry."""

    def __init__(self, ownership: Ownership, model: AcousticModel, family: Family, settings: AcousticSettings) -> None:
        self._ownership = ownership
        self._model = model
        self._family = family
        self._settings = settings
        self._sounding: dict[str, Sounding] = {}
        self._batches = Batches(model.batch, settings.gather_s, settings.hold_s or 0.0)
        self._window_s = 0.5  # decoding time of a window, a moving mean
        self._taking: Aside[None] = Aside("taking", ownership.signals.wake)
        self._taken: deque[tuple[Owned, bytes | None]] = deque()  # with their carries; not begun yet
        self._reading: Aside[list[Read]] = Aside("reading", ownership.signals.wake)
        self._looked_at = 0.0
        self._look = True  # whether there may be jobs to take
        self._rung: set[str] = set()  # jobs whose logs are to be read
        self._reread_at = 0.0
        ownership.slots = settings.max_num_seqs
        ownership.counts |= {"windows": 0, "calls": 0, "busy_ms": 0, "samples": 0, "late": 0}

    def run(self, stop: threading.Event) -> None:
        """Work until `stop`, then hand every job over; what else ends it is a strike against the jobs it had."""
        self._ownership.serve(stop, lambda: self._turn(stop), self._leave)

    def _turn(self, stop: threading.Event) -> bool:
        self._drop_over()
        self._note_rung()
        self._admit()
        self._read_news()
        soundings, wait = self._next()
        if soundings:
            self._decode(soundings, stop)
        elif wait > 0:
            self._ownership.signals.wait(wait)
        return bool(soundings) or wait > 0

    # --- which job ----------------------------------------------------------------------------------------------------

    def _note_rung(self) -> None:
        """The bell is rung for jobs of this worker's, and for those that nobody has yet."""
        signals = self._ownership.signals
        rung = signals.rung()
        due = time.monotonic() - self._looked_at > _LOOK_S
        self._look |= not rung <= self._sounding.keys() or signals.has_lapsed or due
        self._rung |= rung

    def _admit(self) -> None:
        room = self._settings.max_num_seqs - len(self._sounding) - len(self._taken)
        if self._look and not self._taking.busy and room > 0:
            self._looked_at, self._look = time.monotonic(), False
            self._taking.begin(partial(self._take_jobs, room))
            self._taking.wait(_PATIENCE * self._window_s)
        self._taking.results()
        while self._taken:
            owned, carry = self._taken.popleft()
            try:
                self._begin(owned, carry)
            except BrokenLog as error:
                self._ownership.refuse(owned, "broken_log", str(error), retryable=True)
            except Exception as error:  # such as a carry of another layout
                self._ownership.give_up(owned, error)

    def _take_jobs(self, room: int) -> None:
        """Take as many jobs as there are, and there is room for, with their carries. Waits for the broker."""
        if not (taken := self._ownership.take(room, new=room)):
            return
        try:
            pipeline = self._ownership.client.pipeline(transaction=False)
            for owned in taken:
                pipeline.get(keys.carry(owned.job))
            carries = pipeline.execute()
        except redis.RedisError:
            for owned in taken:
                self._ownership.hand_over(owned)
        else:
            self._taken += zip(taken, carries, strict=True)

    def _begin(self, owned: Owned, stored: bytes | None) -> None:
        state, plan = owned.state, self._family.plan(owned.state.requested)
        all_said = state.terminal and state.chunks == plan.count(state.frames)
        carry = Carry(state.chunks, state.samples) if all_said else _carry_of(owned, stored)
        heard = state.first_chunk_at / 1000 if state.first_chunk_at else None
        decoded = carry.windows if self._model.keeps_state else 0
        sounding = Sounding(
            owned, plan, carry, self._frames_of(owned, carry, plan), time.time(), heard, decoded, carry.state
        )  # fmt: skip
        self._sounding[owned.job] = sounding
        self._rung.add(owned.job)  # the bell may have been rung since its log was read
        self._ownership.announce(owned, rows=1, from_window=carry.windows)
        if all_said:  # whoever had it fell between the last chunk and the last word
            self._complete(sounding)

    def _frames_of(self, owned: Owned, carry: Carry, plan: Plan) -> Frames:
        if self._model.width:
            first, _ = plan.bounds(carry.windows, owned.state.frames)
            return Conditioning(self._ownership.client, owned.job, first=first, shared=carry.shared)
        codes = LoggedCodes(owned.job)
        codes.take(owned.events)
        return codes

    def _read_news(self) -> None:
        """New events of the jobs that the bell was rung for; of all of them now and then."""
        if time.monotonic() - self._reread_at > _REREAD_S:
            self._reread_at = time.monotonic()
            self._rung |= self._sounding.keys()
        self._rung &= self._sounding.keys()
        asked = [self._sounding[job] for job in self._rung if not self._sounding[job].owned.state.terminal]
        if asked and not self._reading.busy:
            self._rung.clear()
            self._reading.begin(partial(self._read, {sounding: sounding.owned.state.seq for sounding in asked}))
            self._reading.wait(_PATIENCE * self._window_s)
        for read in itertools.chain.from_iterable(self._reading.results()):
            if self._sounding.get(read.sounding.job) is read.sounding:
                self._learn(read.sounding, read.entries)

    def _read(self, since: dict[Sounding, int]) -> list[Read]:
        """The jobs' events from these on, in one exchange with the broker, which is waited for."""
        pipeline = self._ownership.client.pipeline(transaction=False)
        for sounding, seq in since.items():
            pipeline.xrange(keys.log(sounding.job), min=f"{seq}-0")
        try:
            replies = pipeline.execute()
        except redis.RedisError as error:
            logger.warning("the broker is away: %s", error)
            return []
        return [Read(sounding, entries) for sounding, entries in zip(since, replies, strict=True)]

    def _read_log(self, sounding: Sounding) -> None:
        """What is new in the job's log, now."""
        owned = sounding.owned
        entries: Any = self._ownership.client.xrange(keys.log(owned.job), min=f"{owned.state.seq}-0")
        self._learn(sounding, entries)

    def _learn(self, sounding: Sounding, entries: Entries) -> None:
        """Where the newest known event is not where it was, the broker has lost it."""
        owned = sounding.owned
        if entries and int(entries[0][0].partition(b"-")[0]) < owned.state.seq:
            return  # read before others were
        try:
            if not entries or entries[0][1][b"e"] != owned.newest:
                raise BrokenLog(f"event {owned.state.seq} of job {owned.job} is not what it was")
            events = [decode(entry[b"e"]) for _, entry in entries[1:]]
            owned.state = fold(events, owned.state)
        except (BrokenLog, DecodeError) as error:
            logger.warning("%s", error)
            owned.lease.over = owned.lease.over or "gap"
        else:
            owned.newest = entries[-1][1][b"e"]
            sounding.conditioning.take(events)

    def _next(self) -> tuple[list[Sounding], float]:
        """Whose windows are decoded now; or nobody's, and for how long to wait for others' to go with them."""
        now, waiting = time.time(), []
        for sounding in self._sounding.values():
            if sounding.carry.windows < sounding.windows and not (sounding.done or sounding.owned.lease.over):
                sounding.ready_at = min(sounding.ready_at or now, now)  # the clock may be set back
                waiting.append(self._waiting(sounding, sounding.ready_at))
        talking = [sounding for sounding in self._sounding.values() if not sounding.owned.state.terminal]
        dry_at = [self._dry_at(sounding) for sounding in talking if sounding.carry.windows == sounding.windows > 0]
        batch, wait = self._batches.next(
            waiting, now=now, window_s=self._window_s, expected=len(talking) - len(waiting), dry_at=dry_at
        )
        return [self._sounding[chosen.job] for chosen in batch], wait

    def _dry_at(self, sounding: Sounding) -> float:
        """Of a job whose first window is out."""
        return (sounding.heard_from or sounding.since) + sounding.carry.samples / self._model.sample_rate

    def _waiting(self, sounding: Sounding, ready_at: float) -> Waiting:
        seconds = sounding.carry.samples / self._model.sample_rate
        return Waiting(
            sounding.job, sounding.since, sounding.heard_from, seconds, ready_at, self._shape(sounding)
        )  # fmt: skip

    def _shape(self, sounding: Sounding) -> Hashable:
        """What its next window costs: nobody waits for the sound of a longer one."""
        state, index, plan = sounding.owned.state, sounding.carry.windows, sounding.plan
        start, end = plan.bounds(index, state.frames)
        reference = state.reference.codes if state.reference is not None and index == 0 else None
        shape = self._model.shape(end - start, last=state.terminal and index + 1 == plan.count(state.frames))
        return shape, None if reference is None else reference.shape, sounding.decoded < index

    # --- a window of each ---------------------------------------------------------------------------------------------

    def _decode(self, soundings: list[Sounding], stop: threading.Event) -> None:
        began, asked = time.monotonic(), {}
        for sounding in soundings:
            try:
                self._catch_up(sounding, stop)
                asked[sounding.job] = self._window(sounding, stop)
            except Dropped:
                continue
            except MissingFrames as error:
                self._miss(sounding, error)
            except redis.RedisError as error:
                logger.warning("the broker is away: %s", error)
                self._ownership.signals.wait(_AWAY_S)
            except Exception as error:
                self._give_up(sounding, error)
        soundings = [sounding for sounding in soundings if sounding.job in asked]
        if not soundings:
            return
        try:
            decoded = self._model.windows(list(asked.values()))
        except Exception as error:
            if len(soundings) == 1:
                self._give_up(soundings[0], error)
            else:  # whose fault it was shows when each is decoded alone, which gives the same bytes
                logger.warning("a batch of windows broke: %s", error)
                for sounding in soundings:
                    self._decode([sounding], stop)
            return
        took = time.monotonic() - began
        self._window_s += 0.2 * (took - self._window_s)
        self._ownership.counts["calls"] += 1
        self._ownership.counts["busy_ms"] += round(1000 * took)
        for sounding, own in zip(soundings, decoded, strict=True):
            if own is not None:
                self._take(sounding, asked[sounding.job], own)

    def _catch_up(self, sounding: Sounding, stop: threading.Event) -> None:
        """Decode again what another worker has decoded, and whose sound is out. Raises Dropped."""
        while sounding.decoded < sounding.carry.windows:
            [again] = self._model.windows([self._window(sounding, stop)])
            if again is None:
                raise Dropped
            sounding.state, sounding.decoded = again.state, sounding.decoded + 1

    def _window(self, sounding: Sounding, stop: threading.Event) -> Window:
        """The job's next window; raises MissingFrames."""
        state, index, plan = sounding.owned.state, sounding.decoded, sounding.plan
        codes = state.reference.codes if state.reference is not None and index == 0 else None
        return Window(
            sounding.conditioning.frames(*plan.bounds(index, state.frames)),
            index,
            last=state.terminal and index + 1 == plan.count(state.frames),
            seed=state.requested.seed,
            state=sounding.state,
            check=lambda: self._check(sounding, stop),
            reference=None if codes is None else codes.numpy(),
        )

    def _take(self, sounding: Sounding, window: Window, decoded: Decoded) -> None:
        """Publish a window's sound, and keep what the next one needs."""
        carry, frames, index = sounding.carry, sounding.owned.state.frames, window.index
        _, end = sounding.plan.bounds(index, frames)
        after = Carry(index + 1, carry.samples + len(decoded.pcm))
        if self._model.keeps_state:
            next_start, _ = sounding.plan.bounds(index + 1, frames)
            after.shared = None if window.last else sounding.conditioning.frames(next_start, end)
            after.state = decoded.state
        sounding.carry, sounding.state, sounding.decoded = after, decoded.state, index + 1
        sounding.ready_at = None
        self._publish(sounding, carry.samples, decoded.pcm, last=window.last, end=end)

    def _give_up(self, sounding: Sounding, error: Exception) -> None:
        del self._sounding[sounding.job]
        self._ownership.give_up(sounding.owned, error)

    def _miss(self, sounding: Sounding, error: MissingFrames) -> None:
        """Either the broker has lost the span, log and all, and it will come again; or the job cannot be done."""
        try:
            self._read_log(sounding)
        except redis.RedisError:
            self._ownership.signals.wait(_AWAY_S)
            return
        if not sounding.owned.lease.over:
            sounding.done = True
            self._ownership.fail(sounding.owned, "broken_log", str(error), retryable=True)

    def _check(self, sounding: Sounding, stop: threading.Event) -> None:
        """Between solver steps: is the window still wanted? Others' tombstones are noted in passing."""
        self._ownership.watchdog.beat()
        self._note_cancelled()
        if sounding.owned.lease.over or stop.is_set():
            raise Dropped

    def _publish(self, sounding: Sounding, start_sample: int, pcm: np.ndarray, *, last: bool, end: int) -> None:
        owned, carry = sounding.owned, sounding.carry
        sound = np.ascontiguousarray(pcm, dtype="<i2").tobytes()
        chunk = AudioChunk(
            index=carry.windows - 1,
            samples=len(pcm),
            start_sample=start_sample,
            sha256=hashlib.sha256(sound).hexdigest(),
        )
        now = time.time()
        if sounding.heard_from is None:
            sounding.heard_from = now
        counts = self._ownership.counts
        counts["windows"] += 1
        counts["samples"] += len(pcm)
        counts["late"] += now > sounding.heard_from + start_sample / self._model.sample_rate
        self._ownership.write(
            owned,
            chunk,
            pcm=sound,
            carry=b"" if last else carry.pack(),
            trim=sounding.conditioning.trim_after(end),
        )
        if last:
            self._complete(sounding)

    def _complete(self, sounding: Sounding) -> None:
        owned, carry, reason = sounding.owned, sounding.carry, sounding.owned.state.reason
        assert reason is not None  # the terminal span has it
        sounding.done = True
        completed = JobCompleted(samples=carry.samples, frames=owned.state.frames, reason=reason)
        self._ownership.finish(owned, completed, after=carry.windows)

    # --- letting go ---------------------------------------------------------------------------------------------------

    def _note_cancelled(self) -> None:
        for job in self._ownership.signals.cancelled():
            if job in self._sounding:
                lease = self._sounding[job].owned.lease
                lease.over = lease.over or "job.cancelled"

    def _drop_over(self) -> None:
        self._note_cancelled()
        for job, sounding in list(self._sounding.items()):
            if sounding.owned.lease.over:
                del self._sounding[job]
                self._ownership.let_go(sounding.owned)

    def _leave(self, error: BaseException | None) -> None:
        self._reading.stop()
        self._taking.stop()
        taken = [owned for owned, _ in self._taken]
        self._ownership.leave(taken + [sounding.owned for sounding in self._sounding.values()], error)


def _carry_of(owned: Owned, stored: bytes | None) -> Carry:
    """The state after the newest chunk. Raises BrokenLog."""
    carry = Carry.unpack(stored) if stored else Carry()
    if carry.windows != owned.state.chunks:
        raise BrokenLog(f"job {owned.job} has {owned.state.chunks} chunks, and a carry of {carry.windows} windows")
    return carry
