"""What both roles do to come to own a job, and to let go of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis

from broker_schemas import keys
from broker_schemas.codec import DecodeError
from broker_schemas.events import (
    Event,
    JobAdmitted,
    JobFailed,
    JobRequested,
    JobResumed,
    NewerVersion,
    Payload,
    decode,
)
from broker_schemas.heartbeat import Heartbeat, broker_ms
from broker_schemas.job import BrokenLog, JobState, fold
from workers.inbox import Inbox
from workers.leases import Exhausted, Keeper, Lease, Leases, Watchdog
from workers.publish import Entry, Mark, Publisher
from workers.settings import LeaseSettings
from workers.signals import Signals, ring

logger = logging.getLogger(__name__)

# A stream's entries: (id, fields).
Entries = list[tuple[bytes, dict[bytes, bytes]]]

_IDLE_S = 0.5  # between looks around, where no bell rings


@dataclass(slots=True, eq=False)
class Owned:
    """A job of this worker's: its lease, and its log as read when it was taken."""

    lease: Lease
    state: JobState
    events: list[Event]
    newest: bytes  # the newest event read, as it stands in the log

    @property
    def job(self) -> str:
        return self.lease.job


class Ownership:
    """A worker's end of the broker: it finds jobs, owns them by lease, writes their events, and hands them over."""

    def __init__(
        self, client: redis.Redis, *, role: str, model: str, worker: str, profile: str, settings: LeaseSettings
    ) -> None:
        self.client = client
        self.role = role
        self.model = model
        self.worker = worker
        self.profile = profile
        self.watchdog = Watchdog("main loop", settings.stall_s)
        writing = Watchdog("publisher", settings.stall_s)
        self.leases = Leases(client, role=role, worker=worker, profile=profile, settings=settings)
        self.signals = Signals(client, model=model, role=role)
        self.publisher = Publisher(client, model=model, worker=worker, watchdog=writing, waiting=self.watchdog.beat)
        self._inbox = Inbox(client, role=role, model=model, worker=worker, min_idle_s=settings.ttl_s)
        self._keeper = Keeper(self.leases, [self.watchdog, writing], self._heartbeat, settings.ttl_s)
        self._lapsed: set[str] = set()
        self.slots = 0  # jobs that the worker can hold
        self.counts = dict.fromkeys(("jobs", "takeovers", "cancelled", "failed"), 0)  # since the start; see Heartbeat
        self._draining = False

    def serve(
        self, stop: threading.Event, turn: Callable[[], bool], leave: Callable[[BaseException | None], None]
    ) -> None:
        """Take turns until `stop`, then leave; so too when a turn raises.

        Args:
            turn: one round of the main loop; whether there was anything to do.
            leave: lets go of all jobs; with what ended the loop, where that was not `stop`.
        """
        self.publisher.leaving = stop.is_set
        for thread in (self.signals, self.publisher, self._keeper):
            thread.start()
        try:
            while not stop.is_set():
                self._beat()
                if not turn():
                    self.signals.wait(_IDLE_S)
            leave(None)
        except BaseException as error:
            self.publisher.leaving = lambda: True
            leave(error)
            raise
        finally:
            self._keeper.stop()
            self.signals.stop()

    def _beat(self) -> None:
        """The main loop goes on; raises what the publisher died of."""
        self.watchdog.beat()
        if self.publisher.error:
            raise self.publisher.error

    def leave(self, jobs: list[Owned], error: BaseException | None = None) -> None:
        """Write what is queued, let `jobs` go, and stop: nobody counts on this worker any more.

        Without an error they are handed over; an error, which may be theirs, is a strike against them.
        """
        self.publisher.stop()
        leases = [owned.lease for owned in jobs]
        # Songs whose end could not be written any more: their loop is done with them, and their leases are held yet.
        leases += [lease for lease in self.leases.held() if lease not in leases]
        try:
            for lease in leases:
                if error is None:
                    self.leases.give_back(lease, handed_over=True)
                else:
                    text = f"{type(error).__name__}: {error}"
                    self.leases.give_back(lease, handed_over=False, error=text)
                ring(self.client, self.model, self.role, lease.job, lapsed=True)
            self._keeper.stop()
            self.client.hdel(keys.WORKERS, self.worker)
            self.client.srem(keys.DRAINING, self.worker)
        except redis.RedisError:
            logger.warning("the broker is away: this worker's leases and heartbeat will run out by themselves")

    # --- taking -----------------------------------------------------------------------------------------------------

    def take(self, room: int, *, new: int) -> list[Owned]:
        """Own the next jobs that there are for this worker; nothing when there is none to be had now.

        All of them in a few exchanges with the broker, each of which may have to wait for its disk.

        Args:
            room: how many at most. Jobs that lost their owner come first.
            new: how many of them may be ones that nobody had yet.
        """
        self._lapsed |= self.signals.lapsed()
        if self._draining:
            return []
        try:
            while jobs := self._next_to_try(room, new):
                if owned := self._take(jobs):
                    return owned
        except redis.RedisError as error:
            logger.warning("no jobs taken, the broker is away: %s", error)
        return []

    def _next_to_try(self, room: int, new: int) -> list[str]:
        jobs = [self._lapsed.pop() for _ in range(min(room, len(self._lapsed)))]
        jobs += self._inbox.reclaimed(room - len(jobs))
        return [*jobs, *self._inbox.new(min(new, room - len(jobs)))]

    def _take(self, jobs: list[str]) -> list[Owned]:
        # Of those that it holds, its keeper renews the lease, or its loop is about to let go.
        outcomes = self.leases.take([job for job in jobs if not self.leases.holds(job)])
        leased = [lease for _, lease in outcomes if isinstance(lease, Lease)]
        try:
            owned = [self._own(lease, entries) for lease, entries in zip(leased, self._logs(leased), strict=True)]
            for job, outcome in outcomes:
                if isinstance(outcome, Exhausted):
                    self._fail_exhausted(job, str(outcome))
                elif not isinstance(outcome, Lease) and outcome.why in ("gone", "final"):
                    self._drop_pointer(job)
        except BaseException:
            for lease in leased:
                self.leases.release(lease, handed_over=True)
            raise
        return [each for each in owned if each is not None]

    def _logs(self, leases: list[Lease]) -> list[Entries]:
        pipeline = self.client.pipeline(transaction=False)
        for lease in leases:
            pipeline.xrange(keys.log(lease.job))
        return pipeline.execute()

    def _own(self, lease: Lease, entries: Entries) -> Owned | None:
        """The job as its log has it; None where it cannot be read, or there is nothing left to do in this role."""
        try:
            owned = self._read(lease, entries)
        except NewerVersion as error:
            logger.warning("job %s is for newer workers: %s", lease.job, error)
            self.leases.release(lease, handed_over=True)
            return None
        except (DecodeError, BrokenLog) as error:
            self.leases.release(lease, handed_over=False, error=str(error))
            return None
        if owned is None:
            self.leases.release(lease, handed_over=True)
        return owned

    def _read(self, lease: Lease, entries: Entries) -> Owned | None:
        if not entries:  # purged, or expired, since the lease was taken
            return None
        events = [decode(entry[b"e"]) for _, entry in entries]
        state = fold(events)
        if state.status.final or (self.role == keys.TALKER and state.terminal):
            self._drop_pointer(lease.job)
            return None
        return Owned(lease, state, events, newest=entries[-1][1][b"e"])

    def _request(self, job: str) -> JobRequested | None:
        """The job's first event; None where it is gone, or cannot be read."""
        first: Any = self.client.xrange(keys.log(job), "1-0", "1-0")
        try:
            return fold([decode(first[0][1][b"e"])]).requested if first else None
        except (DecodeError, BrokenLog):
            return None

    def _drop_pointer(self, job: str) -> None:
        """The job needs nobody in this role: its pointer goes from its owner's stream, or from whichever it is in."""
        request = self._request(job)
        for owner in [request.owner] if request else self._owners():
            self._inbox.drop(job, owner)

    def _owners(self) -> list[str]:
        """Whose requests the model's talkers look at."""
        owners: Any = self.client.smembers(keys.owners(self.model))
        return [owner.decode() for owner in owners]

    def _fail_exhausted(self, job: str, error: str) -> None:
        request = self._request(job)
        if request is None:
            return
        message = f"the job ended {self.role} workers again and again; the last error was: {error}"
        failure = JobFailed(code="worker_lost", message=message, retryable=True)
        nobody = Lease(job, role="", token="", attempt=0)
        self.publisher.put(Entry(nobody, failure, request.owner, request.ttl_ms))

    def announce(
        self, owned: Owned, *, rows: int, from_frame: int | None = None, from_window: int | None = None
    ) -> None:
        """Log that this worker has the job: admitted the first time, resumed after that."""
        attempt, token = owned.lease.attempt, owned.lease.token
        common: dict[str, Any] = {"role": self.role, "worker": self.worker, "attempt": attempt, "token": token}
        if self.role not in owned.state.admitted_at:
            self.write(owned, JobAdmitted(rows=rows, profile=self.profile, **common))
        else:
            self.counts["takeovers"] += 1
            self.write(owned, JobResumed(from_frame=from_frame, from_window=from_window, **common))

    # --- writing and letting go ---------------------------------------------------------------------------------------

    def write(
        self, owned: Owned, payload: Payload, *, settled: Callable[[bool], None] | None = None, **companions: Any
    ) -> None:
        """Queue an event of an owned job; see `Entry` and `broker_schemas.log.append`."""
        request = owned.state.requested
        self.publisher.put(Entry(owned.lease, payload, request.owner, request.ttl_ms, companions, settled))

    def finish(self, owned: Owned, final: Payload, **companions: Any) -> None:
        """Queue the job's final event; once it is written the lease is over, and the loop lets go of the job."""

        def over(written: bool) -> None:
            if written:
                self.counts["failed" if isinstance(final, JobFailed) else "jobs"] += 1
                owned.lease.over = owned.lease.over or final.type

        self.write(owned, final, settled=over, **companions)

    def fail(self, owned: Owned, code: str, message: str, *, retryable: bool) -> None:
        """End the job: it cannot be done."""
        self.finish(owned, JobFailed(code=code, message=message, retryable=retryable))

    def refuse(self, owned: Owned, code: str, message: str, *, retryable: bool) -> None:
        """End a job that was taken, and not begun."""
        self.fail(owned, code, message, retryable=retryable)
        self.leases.forget(owned.lease)

    def let_go(self, owned: Owned) -> None:
        """The lease is over. Where the broker lost writes that this worker counted on, others begin from the log."""
        self.counts["cancelled"] += owned.lease.over == "job.cancelled"
        if owned.lease.over != "gap":
            self.leases.forget(owned.lease)
            return
        self.watchdog.beat()
        error = "the log is not what its writer left"  # a strike, as a log that stays so must not be tried for ever
        self.leases.release(owned.lease, handed_over=False, error=error)
        self._ring_lapsed(owned.job)

    def give_up(self, owned: Owned, error: BaseException) -> None:
        """This attempt broke: another may do better, and the last one's error is what the client will read."""
        logger.exception("%s of %s broke", self.role, owned.job)

        def release(_written: bool) -> None:
            self.leases.release(owned.lease, handed_over=False, error=f"{type(error).__name__}: {error}")
            self._ring_lapsed(owned.job)

        self.publisher.put(Mark(release))  # after what the attempt had to say

    def hand_over(self, owned: Owned) -> None:
        """Leave the job to whoever comes first, without a strike against it."""
        self.leases.release(owned.lease, handed_over=True)
        self._ring_lapsed(owned.job)

    def _ring_lapsed(self, job: str) -> None:
        try:
            ring(self.client, self.model, self.role, job, lapsed=True)
        except redis.RedisError:
            logger.warning("the broker is away: the sweeper will find %s", job)

    def _heartbeat(self) -> None:
        pipeline = self.client.pipeline(transaction=False)
        pipeline.time()
        pipeline.sismember(keys.DRAINING, self.worker)
        now, draining = pipeline.execute()
        self._draining = bool(draining)
        held, clock = self.leases.held(), time.monotonic()
        beat = Heartbeat(
            worker=self.worker,
            role=self.role,
            model=self.model,
            profile=self.profile,
            at=broker_ms(now),
            slots=self.slots,
            held=len(held),
            oldest_s=max((clock - lease.taken_at for lease in held), default=0.0),
            draining=self._draining,
            counts=dict(self.counts),
        )
        self.client.hset(keys.WORKERS, self.worker, beat.pack())
