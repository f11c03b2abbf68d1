"""The talker worker: admit, step, publish; drop what was cancelled."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import redis

from broker_schemas import keys
from broker_schemas.codec import Tensor
from broker_schemas.events import CodesLogged, ReferenceEncoded, RowsFreed
from broker_schemas.job import logged_codes
from broker_schemas.recordings import BadRecording
from workers.aside import Aside
from workers.models.family import Family, Reference, TalkerModel
from workers.owning import Owned, Ownership
from workers.settings import TalkerSettings
from workers.talker.frames import FrameHistory
from workers.talker.passages import Reading
from workers.talker.references import References, recording_of
from workers.talker.rows import DoesNotFit
from workers.talker.spans import SpanCutter

logger = logging.getLogger(__name__)

_LOOK_S = 0.25  # how often jobs are looked for that no bell was rung for


class Runner(Protocol):
    """An engine: rows in slots, one batched step for all of them."""

    steps: int  # taken so far

    @property
    def free_jobs(self) -> int:
        """How many more jobs could be admitted now."""
        ...

    @property
    def idle(self) -> bool: ...

    def admit(self, history: FrameHistory, prompts: list[list[int]]) -> None:
        """Bind the job's rows; raises DoesNotFit."""
        ...

    def free(self, job: str) -> int:
        """Give the job's rows back, all at once; how many there were."""
        ...

    def step(self) -> list[FrameHistory]:
        """One step; the jobs that drew a frame in it, or ended, or were given up: their history is `refused` then."""
        ...

    def profile(self) -> dict[str, Any]:
        """All that the bits of its output depend on, besides the weights."""
        ...


@dataclass(slots=True, eq=False)
class Encoding:
    """A job whose recording is being encoded; it has no rows yet."""

    owned: Owned
    reference: Future[Reference]


@dataclass(slots=True, eq=False)
class Talking:
    """A job in the runner."""

    owned: Owned
    reading: Reading
    cutter: SpanCutter


class TalkerWorker:
    """The main loop: it never waits for the broker. Events are written, and jobs looked for, by other threads."""

    def __init__(
        self, ownership: Ownership, runner: Runner, model: TalkerModel, family: Family, settings: TalkerSettings,
        references: References | None = None,
    ) -> None:  # fmt: skip
        self._ownership = ownership
        self._runner = runner
        self._model = model
        self._family = family
        self._settings = settings
        self._references = references
        self._talking: dict[str, Talking] = {}  # by the name that the runner knows
        self._encoding: dict[str, Encoding] = {}
        self._taking: Aside[None] = Aside("taking", ownership.signals.wake)
        self._taken: deque[Owned] = deque()  # not begun yet
        self._looked_at = 0.0
        self._look = True  # whether there may be jobs, or room that there was not
        self._unready: set[str] = set()  # jobs of this worker's whose first span is not out yet
        ownership.slots = settings.max_jobs
        ownership.counts |= {"draws": 0, "steps": 0, "busy_ms": 0}

    def run(self, stop: threading.Event) -> None:
        """Work until `stop`, then hand every job over; what else ends it is a strike against the jobs it had."""
        self._ownership.serve(stop, self._turn, self._leave)

    def _turn(self) -> bool:
        self._drop_over()
        self._begin_encoded()
        self._admit()
        if self._runner.idle:
            return False
        counts, began = self._ownership.counts, time.monotonic()
        stepped = self._runner.step()
        counts["steps"] += 1
        counts["busy_ms"] += round(1000 * (time.monotonic() - began))
        for history in stepped:
            counts["draws"] += 1
            talking = self._talking[history.job]
            if history.refused is None or history.reason is not None:  # it may have ended in that very step
                self._publish(talking)
            else:
                self._fail_unfit(talking.owned, self._release(talking), history.refused)
        return True

    # --- admission ----------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        self._taking.results()
        while self._taken:
            self._welcome(self._taken.popleft())
        signals = self._ownership.signals
        due = time.monotonic() - self._looked_at > _LOOK_S
        self._look |= bool(signals.rung()) or signals.has_lapsed or due
        room = self._runner.free_jobs - len(self._encoding) - len(self._taken)
        if self._look and not self._taking.busy and room > 0:
            self._looked_at, self._look = time.monotonic(), False
            self._taking.begin(partial(self._take_jobs, room))

    def _take_jobs(self, room: int) -> None:
        """Take as many jobs as there are, and there is room for. Waits for the broker."""
        for owned in self._ownership.take(room, new=self._admissible()):
            if not owned.state.spans:
                self._unready.add(owned.job)
            self._taken.append(owned)

    def _welcome(self, owned: Owned) -> None:
        request, logged = owned.state.requested, owned.state.reference
        if not recording_of(request):
            self._begin(owned, None)
        elif logged is not None:
            codes = None if logged.codes is None else logged.codes.numpy()
            self._begin(owned, Reference(logged.speaker.numpy(), codes))
        elif self._references is None:
            message = "this checkpoint clones no voices: leave the recording out, or serve a Base checkpoint"
            self._refuse(owned, "no_references", message)
        else:
            self._encode(owned, self._references)

    def _refuse(self, owned: Owned, code: str, message: str) -> None:
        """The job cannot be done, here or anywhere."""
        self._unready.discard(owned.job)
        self._ownership.refuse(owned, code, message, retryable=False)

    def _encode(self, owned: Owned, references: References) -> None:
        reference = references.begin(owned.state.requested)
        reference.add_done_callback(lambda _: self._ownership.signals.wake())
        self._encoding[owned.job] = Encoding(owned, reference)

    def _begin_encoded(self) -> None:
        """Begin the jobs whose recordings are references now."""
        for job, encoding in list(self._encoding.items()):
            if not encoding.reference.done():
                continue
            del self._encoding[job]
            owned = encoding.owned
            try:
                reference = encoding.reference.result()
            except (LookupError, BadRecording) as error:
                self._refuse(owned, "no_reference", str(error))
            except redis.RedisError as error:
                logger.warning("the broker is away: %s", error)
                self._unready.discard(owned.job)
                self._ownership.hand_over(owned)
            except Exception as error:
                self._unready.discard(owned.job)
                self._ownership.give_up(owned, error)
            else:
                self._log_reference(owned, reference)
                self._begin(owned, reference)

    def _log_reference(self, owned: Owned, reference: Reference) -> None:
        """Before the first span: the acoustic stage begins with it."""
        codes = None if reference.codes is None else Tensor.of(reference.codes)
        recording, speaker = recording_of(owned.state.requested), Tensor.of(reference.speaker)
        self._ownership.write(owned, ReferenceEncoded(recording=recording, speaker=speaker, codes=codes))

    def _admissible(self) -> int:
        """How many new songs the acoustic stage can bear; those that were begun go on, or it would wait for them."""
        unready = len(self._unready)  # first: a song whose span comes out meanwhile counts twice, not never
        try:
            ready = self._ownership.client.xlen(keys.ready(self._ownership.model))
        except redis.RedisError:
            return 0
        return max(0, self._settings.ready_limit - ready - unready)

    def _begin(self, owned: Owned, reference: Reference | None) -> None:
        request, state = owned.state.requested, owned.state
        async_chunk = request.params.get("async_chunk", True)
        try:
            reading = Reading(
                request,
                state,
                logged_codes(owned.events),
                sent=SpanCutter.sent(state, lead=self._model.lead, async_chunk=async_chunk),
                max_frames=self._model.max_frames(request),
                lead=self._model.lead,
                reference=reference,
                loops=self._family.loops,
            )
            self._admit_passage(reading.passage)
        except DoesNotFit as error:  # nor would it anywhere else
            self._refuse(owned, "does_not_fit", str(error))
            return
        except Exception as error:
            self._unready.discard(owned.job)
            self._ownership.give_up(owned, error)
            return
        cutter = SpanCutter(self._family.plan(request), state, lead=self._model.lead, async_chunk=async_chunk)
        self._talking[reading.passage.job] = Talking(owned, reading, cutter)
        self._ownership.announce(owned, rows=self._model.rows, from_frame=max(0, state.draws - self._model.lead))

    def _admit_passage(self, passage: FrameHistory) -> None:
        self._runner.admit(passage, self._model.prompts(passage.request, passage.reference, passage.context))

    # --- publishing ---------------------------------------------------------------------------------------------------

    def _publish(self, talking: Talking) -> None:
        owned, reading = talking.owned, talking.reading
        reading.take()
        for cut in talking.cutter.cut(reading.history):
            is_span = not isinstance(cut.payload, CodesLogged)
            ready = partial(self._note_ready, owned.job) if is_span else None
            self._ownership.write(owned, cut.payload, settled=ready, conditioning=cut.conditioning, after=cut.after)
        if reading.history.reason:
            self._end(talking)
        elif reading.passage.reason:
            self._go_on(talking)

    def _go_on(self, talking: Talking) -> None:
        """The next passage takes the rows of the one that has ended, before anyone else may."""
        owned, reading = talking.owned, talking.reading
        rows = self._release(talking)
        try:
            reading.go_on()
            self._admit_passage(reading.passage)
        except DoesNotFit as error:
            self._fail_unfit(owned, rows, str(error))
        except Exception as error:
            self._note_freed(owned, rows, "broke")
            self._ownership.give_up(owned, error)
        else:
            self._talking[reading.passage.job] = talking

    def _fail_unfit(self, owned: Owned, rows: int, why: str) -> None:
        """The job was begun and cannot go on, here or anywhere; its rows are free already."""
        self._ownership.fail(owned, "does_not_fit", why, retryable=False)
        self._note_freed(owned, rows, "done", settled=lambda _: self._let_go_of_ended(owned))

    def _note_ready(self, job: str, _written: bool) -> None:
        self._unready.discard(job)

    def _end(self, talking: Talking) -> None:
        owned = talking.owned
        if talking.reading.history.frames:
            self._ownership.counts["jobs"] += 1
        else:
            message = "the model ended the song before its first frame; try another seed, or other lyrics"
            self._ownership.fail(owned, "no_frames", message, retryable=False)
        self._free(talking, "done", settled=lambda _: self._let_go_of_ended(owned))

    def _let_go_of_ended(self, owned: Owned) -> None:
        """All that the job had to say is written, or was refused."""
        self._unready.discard(owned.job)
        if owned.lease.over:
            self._ownership.let_go(owned)
        else:
            self._ownership.leases.release(owned.lease, handed_over=True)

    # --- letting go ---------------------------------------------------------------------------------------------------

    def _drop_over(self) -> None:
        cancelled = self._ownership.signals.cancelled()
        for talking in list(self._talking.values()):
            lease = talking.owned.lease
            if talking.owned.job in cancelled:
                lease.over = lease.over or "job.cancelled"
            if lease.over:  # the job is over, or no longer this worker's: its rows go at once
                self._free(talking, lease.over)
                self._ownership.let_go(talking.owned)
        for job, encoding in list(self._encoding.items()):
            lease = encoding.owned.lease
            if job in cancelled:
                lease.over = lease.over or "job.cancelled"
            if lease.over:
                encoding.reference.cancel()
                del self._encoding[job]
                self._unready.discard(job)
                self._ownership.let_go(encoding.owned)

    def _free(self, talking: Talking, why: str, settled: Callable[[bool], None] | None = None) -> None:
        self._note_freed(talking.owned, self._release(talking), why, settled)

    def _release(self, talking: Talking) -> int:
        """Take the job's rows back; how many there were."""
        passage = talking.reading.passage.job
        del self._talking[passage]
        return self._runner.free(passage)

    def _note_freed(self, owned: Owned, rows: int, why: str, settled: Callable[[bool], None] | None = None) -> None:
        self._look = True
        if why != "done":
            self._unready.discard(owned.job)
        freed = RowsFreed(rows=rows, step=self._runner.steps, why=why, token=owned.lease.token)
        self._ownership.write(owned, freed, settled=settled)

    def _leave(self, error: BaseException | None) -> None:
        talking = list(self._talking.values())
        for song in talking:
            self._free(song, "handed over" if error is None else "broke")
        if self._references is not None:
            self._references.close()
        self._taking.stop()
        jobs = [song.owned for song in talking] + [encoding.owned for encoding in self._encoding.values()]
        jobs += self._taken
        self._ownership.leave(jobs, error)
