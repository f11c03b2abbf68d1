"""What both roles do to come to own a job, and to let go of it."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from dataclasses import dataclass

import redis

from broker_schemas import keys
from broker_schemas.codec import pack
from broker_schemas.events import Event, JobAdmitted, JobFailed, JobResumed, Payload, decode
from broker_schemas.job import JobState, fold
from workers.inbox import Inbox
from workers.leases import Exhausted, Keeper, Lease, Leases, Watchdog
from workers.publish import Entry, Publisher
from workers.settings import LeaseSettings
from workers.signals import Signals, ring

logger = logging.getLogger(__name__)


def worker_name(role: str) -> str:
    """A name that no other worker has had."""
    return f"{role}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


@dataclass(slots=True, eq=False)
class Owned:
    """A job of this worker's: its lease, and its log as read when it was taken."""

    lease: Lease
    state: JobState
    events: list[Event]

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
        self.watchdog = Watchdog(settings.stall_s)
        self.leases = Leases(client, role=role, worker=worker, profile=profile, settings=settings)
        self.signals = Signals(client, model=model, role=role)
        self.publisher = Publisher(client, model=model, worker=worker, beat=self.watchdog.beat)
        self._inbox = Inbox(client, role=role, model=model, worker=worker, min_idle_s=settings.ttl_s)
        self._keeper = Keeper(self.leases, self.watchdog, self._heartbeat, settings.ttl_s)
        self._lapsed: list[str] = []

    def start(self) -> None:
        for thread in (self.signals, self.publisher, self._keeper):
            thread.start()

    def leave(self, jobs: list[Owned]) -> None:
        """Write what is queued, hand `jobs` over, and go: nobody counts on this worker any more."""
        self.publisher.stop()
        for owned in jobs:
            self.hand_over(owned)
        self.signals.stop()
        self._keeper.stop()
        try:
            self.client.hdel(keys.WORKERS, self.worker)
        except redis.RedisError:
            logger.warning("the broker is away: this worker's heartbeat will run out by itself")

    # --- taking -----------------------------------------------------------------------------------------------------

    def take_next(self) -> Owned | None:
        """Own the next job there is for this worker; None when there is none to be had now."""
        try:
            self._lapsed += sorted(self.signals.lapsed() - set(self._lapsed))
            while True:
                job = self._lapsed.pop() if self._lapsed else self._inbox.next()
                if job is None:
                    return None
                owned = self._take(job)
                if owned:
                    return owned
        except redis.RedisError as error:
            logger.warning("no new jobs, the broker is away: %s", error)
            return None

    def _take(self, job: str) -> Owned | None:
        try:
            lease = self.leases.take(job)
        except Exhausted as exhausted:
            self._fail_exhausted(job, str(exhausted))
            return None
        if not isinstance(lease, Lease):
            if lease.why in ("gone", "final"):
                self._drop_pointer(job)
            return None
        events = [decode(entry[b"e"]) for _, entry in self.client.xrange(keys.log(job))]
        state = fold(events)
        if state.status.final or (self.role == keys.TALKER and state.terminal):
            self._drop_pointer(job)
            self.leases.release(lease, handed_over=True)
            return None
        return Owned(lease, state, events)

    def _drop_pointer(self, job: str) -> None:
        """The job needs nobody in this role: its pointer is only known by the owner, which the log may still tell."""
        first = self.client.xrange(keys.log(job), "1-0", "1-0")
        if first:
            self._inbox.drop(job, decode(first[0][1][b"e"]).payload.owner)
            return
        for owner in self.client.smembers(keys.owners(self.model)):
            self._inbox.drop(job, owner.decode())

    def _fail_exhausted(self, job: str, error: str) -> None:
        request = decode(self.client.xrange(keys.log(job), "1-0", "1-0")[0][1][b"e"]).payload
        message = f"the job ended {self.role} workers again and again; the last error was: {error}"
        failure = JobFailed(code="worker_lost", message=message, retryable=True)
        lease = Lease(job, "", "", 0)
        self.publisher.put(Entry(lease, failure, request.owner, request.ttl_ms))

    def announce(
        self, owned: Owned, *, rows: int, from_frame: int | None = None, from_window: int | None = None
    ) -> None:
        """Log that this worker has the job: admitted the first time, resumed after that."""
        lease = owned.lease
        common = {"role": self.role, "worker": self.worker, "attempt": lease.attempt, "token": lease.token}
        if self.role not in owned.state.admitted_at:
            self.write(owned, JobAdmitted(rows=rows, profile=self.profile, **common))
        else:
            self.write(owned, JobResumed(from_frame=from_frame, from_window=from_window, **common))

    # --- writing and letting go ---------------------------------------------------------------------------------------

    def write(self, owned: Owned, payload: Payload, *, written=None, **companions) -> None:
        request = owned.state.request
        self.publisher.put(Entry(owned.lease, payload, request.owner, request.ttl_ms, companions, written))

    def fail(self, owned: Owned, code: str, message: str, *, retryable: bool) -> None:
        """End the job: it cannot be done."""
        failed = JobFailed(code=code, message=message, retryable=retryable)
        self.write(owned, failed, written=lambda: self.leases.forget(owned.lease))

    def give_up(self, owned: Owned, error: BaseException) -> None:
        """This attempt broke: another may do better, and the last one's error is what the client will read."""
        logger.exception("%s of %s broke", self.role, owned.job)
        self.leases.release(owned.lease, handed_over=False, error=f"{type(error).__name__}: {error}")
        self._ring_lapsed(owned.job)

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
        beat = {"role": self.role, "model": self.model, "profile": self.profile, "at": int(time.time() * 1000)}
        self.client.hset(keys.WORKERS, self.worker, pack(beat))
