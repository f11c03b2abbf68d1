"""The leases that a worker holds, and the thread that keeps them, apart from the thread that computes."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import redis

from broker_schemas import log
from workers.settings import LeaseSettings

logger = logging.getLogger(__name__)

STALLED = 75  # exit status of a process that ended itself for want of progress


@dataclass(slots=True, eq=False)
class Lease:
    """A job, owned in a role. `over` says why it is no longer: set by whoever notices first, read by the main loop."""

    job: str
    role: str
    token: str
    attempt: int
    over: str | None = None
    taken_at: float = field(default_factory=time.monotonic)


class Exhausted(Exception):
    """The job was taken over too often with nothing new logged; the message is its last error."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job could not be taken: held | profile | gone | final."""

    why: str


class Leases:
    """Takes, renews and gives back leases; `over` is set on those that are lost or whose job has ended."""

    def __init__(self, client: redis.Redis, *, role: str, worker: str, profile: str, settings: LeaseSettings) -> None:
        self._run = log.Scripts(client)
        self._role = role
        self._worker = worker
        self._profile = profile
        self._settings = settings
        self._ttl_ms = int(settings.ttl_s * 1000)
        self._held: dict[str, Lease] = {}
        self._lock = threading.Lock()

    def take(self, jobs: list[str]) -> list[tuple[str, Lease | Refusal | Exhausted]]:
        """Own those of the jobs that nobody owns, in one exchange with the broker; an Exhausted has cost too many.

        One that the broker could not write, for want of memory or so, is left out. Raises RedisError.
        """
        tokens = [secrets.token_hex(8) for _ in jobs]
        calls = [
            log.take_lease(
                job, self._role, token=token, worker=self._worker, ttl_ms=self._ttl_ms, profile=self._profile,
                max_strikes=self._settings.max_strikes,
            )
            for job, token in zip(jobs, tokens, strict=True)
        ]  # fmt: skip
        taken = []
        for job, token, reply in zip(jobs, tokens, self._run.many(calls), strict=True):
            if isinstance(reply, Exception):
                logger.warning("job %s was not taken: %s", job, reply)
            else:
                taken.append((job, self._outcome(job, token, reply)))
        return taken

    def _outcome(self, job: str, token: str, reply: log.Reply) -> Lease | Refusal | Exhausted:
        status, *rest = reply
        if status == "exhausted":
            return Exhausted(rest[0] or "its workers died without a word")
        if status != "ok":
            return Refusal(status)
        lease = Lease(job, self._role, token, attempt=rest[0])
        with self._lock:
            self._held[job] = lease
        return lease

    def release(self, lease: Lease, *, handed_over: bool, error: str = "") -> None:
        """Give the lease back at once, or let it lapse where the broker is away."""
        try:
            self.give_back(lease, handed_over=handed_over, error=error)
        except redis.RedisError:
            logger.warning("could not give back the lease of %s: it will lapse", lease.job)

    def give_back(self, lease: Lease, *, handed_over: bool, error: str = "") -> None:
        """Give the lease back; `error` is what the job's next owner may have to report. Raises RedisError."""
        self.forget(lease)
        self._run(log.release_lease(lease.job, self._role, token=lease.token, handed_over=handed_over, error=error))

    def forget(self, lease: Lease) -> None:
        with self._lock:
            if self._held.get(lease.job) is lease:
                del self._held[lease.job]

    def held(self) -> list[Lease]:
        with self._lock:
            return list(self._held.values())

    def holds(self, job: str) -> bool:
        """Whether this worker owns the job, or has not let go of it yet."""
        with self._lock:
            return job in self._held

    def renew(self) -> None:
        """Renew every lease once, and mark those that are over; one that is over lapses. Raises RedisError."""
        leases = [lease for lease in self.held() if not lease.over]
        calls = [
            log.renew_lease(lease.job, self._role, token=lease.token, ttl_ms=self._ttl_ms) for lease in leases
        ]  # fmt: skip
        for lease, reply in zip(leases, self._run.many(calls), strict=True):
            if isinstance(reply, redis.ResponseError):  # such as being out of memory: others may yet be renewed
                logger.warning("the lease of %s was not renewed: %s", lease.job, reply)
                continue
            if isinstance(reply, Exception):
                raise reply
            status, *rest = reply
            if status != "ok":
                lease.over = lease.over or status
            elif rest[0]:
                lease.over = lease.over or rest[0]


@dataclass(slots=True)
class Watchdog:
    """Ends the process when a loop of it makes no progress: a stuck worker must not keep its jobs."""

    loop: str
    limit_s: float
    end: Callable[[int], None] = os._exit
    _beaten: float = field(default_factory=time.monotonic)

    def beat(self) -> None:
        self._beaten = time.monotonic()

    def check(self) -> None:
        stalled = time.monotonic() - self._beaten
        if stalled > self.limit_s:
            logger.critical("the %s is stuck for %.0f s: this process ends itself", self.loop, stalled)
            self.end(STALLED)


class Keeper(threading.Thread):
    """Renews leases, refreshes the heartbeat and looks after the watchdogs, thrice in a lease's life or oftener."""

    def __init__(self, leases: Leases, watchdogs: list[Watchdog], heartbeat: Callable[[], None], ttl_s: float) -> None:
        super().__init__(name="keeper", daemon=True)
        self._leases = leases
        self._watchdogs = watchdogs
        self._heartbeat = heartbeat
        self._interval = min(ttl_s / 3, 2.0)
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            for watchdog in self._watchdogs:
                watchdog.check()
            try:
                self._leases.renew()
                self._heartbeat()
            except redis.RedisError as error:
                logger.warning("the broker is away: %s", error)
            except Exception:
                logger.exception("the keeper stumbled, and goes on")
            self._stopped.wait(self._interval)

    def stop(self) -> None:
        self._stopped.set()
        self.join(timeout=5)
