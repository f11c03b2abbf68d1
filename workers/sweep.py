"""The sweeper: does what a crash left undone between a job's log and what points to it.

Runs in every api and worker process. Whatever it does may be done twice, by anyone, at any time.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import OutOfMemoryError

from broker_schemas import keys, log
from broker_schemas.codec import DecodeError
from broker_schemas.events import JobFailed, JobRequested, decode
from broker_schemas.heartbeat import DEAD_MS, broker_ms, read_heartbeats
from broker_schemas.job import BrokenLog, fold
from workers.publish import retire
from workers.settings import LeaseSettings
from workers.signals import ring

logger = logging.getLogger(__name__)

_UNBORN_MS = 10_000  # a reservation whose log has not come by then is given back
_AT_ONCE = 128

_HEAD = ("final", "spans", "terminal", "profile:talker", "profile:acoustic")


@dataclass(frozen=True, slots=True)
class _Live:
    """What a sweep reads of one live job."""

    job: str
    request: JobRequested
    final: str | None
    spans: int
    terminal: bool
    profiles: dict[str, str | None]
    expires: dict[str, int | None]  # role -> when its lease lapses; None where it never had one


@dataclass(frozen=True, slots=True)
class _Unborn:
    """A job that has its reservation, and no log: not yet, or no more."""

    job: str
    accepted_at: int


class Sweeper:
    """Walks the live jobs. `name` signs the events that it has to write."""

    def __init__(self, client: redis.Redis, *, name: str, settings: LeaseSettings | None = None) -> None:
        self._client = client
        self._run = log.Scripts(client)
        self._name = name
        self._settings = settings or LeaseSettings()
        self._requests: dict[str, JobRequested] = {}
        self._orphans: dict[tuple[str, str], float] = {}  # (job, role) -> since when nobody could take it over
        self._models: set[str] = set()  # that workers serve
        self._orphans_seen: set[tuple[str, str]] = set()  # in this sweep

    def run(self, stop: threading.Event) -> None:
        """Sweep until `stop`; a broker that is away is waited for."""
        while not stop.wait(self._settings.sweep_s):
            try:
                self.sweep()
            except redis.RedisError as error:
                self._orphans.clear()  # workers' heartbeats stopped, too
                logger.warning("sweep put off, the broker is away: %s", error)
            except Exception:
                logger.exception("a sweep stumbled, and is done again")

    def sweep(self) -> None:
        """One round over everything."""
        now_ms = broker_ms(self._client.time())
        profiles = self._live_profiles(now_ms)
        scores: Any = self._client.zrange(keys.LIVE, 0, -1, withscores=True)
        live = [(job.decode(), int(score)) for job, score in scores]
        self._requests = {job: self._requests[job] for job, _ in live if job in self._requests}
        for first in range(0, len(live), _AT_ONCE):
            going_on: list[_Live] = []
            for job in self._read(live[first : first + _AT_ONCE]):
                try:
                    if isinstance(job, _Unborn):
                        self._forget_unborn(job, now_ms)
                    elif self._tend(job, now_ms, profiles):
                        going_on.append(job)
                except redis.ResponseError as error:  # such as being out of memory: others may yet be tended
                    logger.warning("job %s was not tended: %s", job.job, error)
            self._point(going_on)
        self._orphans = {key: since for key, since in self._orphans.items() if key in self._orphans_seen}
        self._orphans_seen.clear()
        self._forget_idle_owners({(live.model, live.owner) for live in self._requests.values()})
        self._forget_expired(now_ms)

    def _read(self, live: list[tuple[str, int]]) -> list[_Live | _Unborn]:
        pipeline = self._client.pipeline(transaction=False)
        for job, _ in live:
            pipeline.hmget(keys.head(job), *_HEAD)
            for role in keys.ROLES:
                pipeline.hget(keys.lease(job, role), "expires")
            pipeline.xrange(keys.log(job), "1-0", "1-0") if job not in self._requests else pipeline.exists(
                keys.log(job)
            )
        replies = iter(pipeline.execute())
        jobs: list[_Live | _Unborn] = []
        for job, accepted_at in live:
            final, spans, terminal, *profiles = [item.decode() if item else None for item in next(replies)]
            expires = {role: int(value) if (value := next(replies)) else None for role in keys.ROLES}
            first = next(replies)
            if isinstance(first, list) and first and not self._learn(job, first[0][1][b"e"]):
                continue
            if not first:
                jobs.append(_Unborn(job, accepted_at))
                continue
            jobs.append(
                _Live(
                    job, self._requests[job], final, int(spans or 0), terminal is not None,
                    dict(zip(keys.ROLES, profiles, strict=True)), expires,
                )
            )  # fmt: skip
        return jobs

    def _learn(self, job: str, raw: bytes) -> bool:
        """Note the job's request; a job that only newer programs can read is left to them."""
        try:
            self._requests[job] = fold([decode(raw)]).requested
        except (DecodeError, BrokenLog) as error:
            logger.warning("job %s is left alone: %s", job, error)
            return False
        return True

    def _forget_unborn(self, unborn: _Unborn, now_ms: int) -> None:
        if now_ms - unborn.accepted_at > _UNBORN_MS:
            self._run(log.give_back(unborn.job))

    def _tend(self, live: _Live, now_ms: int, profiles: set[tuple[str, str]]) -> bool:
        """Whether the job goes on, and is to be pointed to."""
        if live.final:
            self._see_off(live)
            return False
        if now_ms > live.request.deadline:
            message = "the job was not done by its deadline; submit it again, with a later deadline_s if it is long"
            self._fail(live, JobFailed(code="deadline_exceeded", message=message, retryable=True))
            return False
        roles = [keys.TALKER] * (not live.terminal) + [keys.ACOUSTIC] * bool(live.spans)
        return all([self._tend_role(live, role, now_ms, profiles) for role in roles])

    def _tend_role(self, live: _Live, role: str, now_ms: int, profiles: set[tuple[str, str]]) -> bool:
        """Whether the job goes on."""
        expires, profile = live.expires[role], live.profiles[role]
        if expires is None or expires > now_ms:
            return True
        if profile and (role, profile) not in profiles and self._orphaned_for(live.job, role) > self._settings.orphan_s:
            message = (
                f"no {role} worker of the profile that this job began with ({profile[:12]}) is left; submit it again"
            )
            self._fail(live, JobFailed(code="profile_gone", message=message, retryable=True))
            return False
        ring(self._client, live.request.model, role, live.job, lapsed=True)
        return True

    def _point(self, jobs: list[_Live]) -> None:
        """Have every job that goes on pointed to; whoever was not is told of. One exchange for all of them."""
        pipeline = self._client.pipeline(transaction=False)
        for model, owner in {(job.request.model, job.request.owner) for job in jobs if not job.terminal}:
            pipeline.sadd(keys.owners(model), owner)
        pipeline.execute(raise_on_error=False)  # such as being out of memory: most are there already
        talking = [job for job in jobs if not job.terminal]
        wanted = [(job, keys.TALKER, keys.requests(job.request.model, job.request.owner)) for job in talking]
        wanted += [(job, keys.ACOUSTIC, keys.ready(job.request.model)) for job in jobs if job.spans]
        replies = self._run.many([log.post_pointer(stream, job.job) for job, _, stream in wanted])
        for (job, role, _), reply in zip(wanted, replies, strict=True):
            if isinstance(reply, Exception):
                logger.warning("job %s was not pointed to: %s", job.job, reply)
            elif reply[0]:
                with suppress(redis.ResponseError):  # polling finds it
                    ring(self._client, job.request.model, role, job.job)

    def _orphaned_for(self, job: str, role: str) -> float:
        """Seconds for which this sweeper has seen, without a pause, that the job's owner and its profile are gone."""
        now = time.monotonic()
        self._orphans_seen.add((job, role))
        return now - self._orphans.setdefault((job, role), now)

    def _fail(self, live: _Live, failure: JobFailed) -> None:
        call = log.append(failure, job=live.job, by=self._name, ttl_ms=live.request.ttl_ms)
        status, *_ = self._run(call)
        if status in ("ok", "already"):
            self._see_off(live)

    def _see_off(self, live: _Live) -> None:
        """Clear a final job's traces, and tell the workers that it is over."""
        request = live.request
        retire(self._client, self._run, live.job, model=request.model, owner=request.owner, ttl_ms=request.ttl_ms)
        with suppress(OutOfMemoryError):  # renewals will tell
            self._client.xadd(keys.TOMBSTONES, {"job": live.job}, maxlen=keys.TOMBSTONES_KEPT)

    def _live_profiles(self, now_ms: int) -> set[tuple[str, str]]:
        """(role, profile) of every worker heard of lately; forgets those that are long silent."""
        packed: Any = self._client.hgetall(keys.WORKERS)
        beats = read_heartbeats(packed)
        for beat in beats:
            if now_ms - beat.at > DEAD_MS:
                self._client.hdel(keys.WORKERS, beat.worker)
                self._client.srem(keys.DRAINING, beat.worker)
        self._models = {beat.model for beat in beats}
        return {(beat.role, beat.profile) for beat in beats if beat.alive(now_ms)}

    def _forget_idle_owners(self, live: set[tuple[str, str]]) -> None:
        """Owners without a live job need not be looked at; posting brings them back, and so does the next sweep."""
        for model in self._models:
            owners: Any = self._client.smembers(keys.owners(model))
            names = {owner.decode() for owner in owners}
            idle = [name for name in names if (model, name) not in live]
            if idle:
                self._client.srem(keys.owners(model), *idle)

    def _forget_expired(self, now_ms: int) -> None:
        """Take jobs whose keys are gone out of their owners' lists and out of the budget."""
        expired: Any = self._client.zrangebyscore(keys.EXPIRING, 0, now_ms, start=0, num=_AT_ONCE)
        for member in expired:
            owner, job = member.decode().rsplit("/", 1)
            if not self._client.exists(keys.log(job)):
                self._client.zrem(keys.jobs(owner), job)
                self._run(log.give_back(job, owner))
