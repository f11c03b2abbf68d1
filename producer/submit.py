"""Submit and cancel jobs. Log first, pointer second: what a crash leaves undone in between, the sweeper does."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import math
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import OutOfMemoryError

from broker_schemas import keys, log
from broker_schemas.codec import DecodeError, digest
from broker_schemas.events import JobCancelled, JobRequested
from broker_schemas.heartbeat import broker_ms
from broker_schemas.job import BrokenLog, JobState
from producer.follow import Jobs, Unknown

_REUSED = "this Idempotency-Key was used for another request: use a new key for a new request"
_FINAL_LOOKED_AT = 999  # final jobs, when it is reckoned which of them make room


class Full(Exception):
    """The queue or the byte budget is full. `retry_after` in whole seconds."""

    def __init__(self, retry_after: int, live: int) -> None:
        super().__init__(f"{live} jobs are live and the budget is spent; try again in {retry_after} s")
        self.retry_after = retry_after


class TooLarge(ValueError):
    """The job alone may come to hold more than all jobs may."""

    def __init__(self, reserve_bytes: int, max_bytes: int) -> None:
        super().__init__(f"the job may come to hold {reserve_bytes:,} bytes; all jobs may hold {max_bytes:,}")


class KeyReused(Exception):
    """The Idempotency-Key came before, with another body."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What live jobs may hold together, and how long a final job's keys live on."""

    max_jobs: int = 1024
    max_bytes: int = 8 << 30
    ttl_s: float = 3600.0


class JobIds:
    """Job ids that only this installation can make: a body, and a tag that binds it to its owner.

    So an id whose keys are gone is known to have been a job once (410), and no owner can guess another's (404).
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def _mac(self, *parts: str) -> str:
        text = "\0".join(parts).encode()
        return base64.b32encode(hmac.new(self._secret, text, hashlib.sha256).digest()).decode().lower()

    def new(self, owner: str, idempotency_key: str | None = None) -> str:
        if idempotency_key is None:
            body = base64.b32encode(secrets.token_bytes(15)).decode().lower()
        else:
            body = self._mac("key", owner, idempotency_key)[:24]
        return f"job_{body}{self._mac('id', owner, body)[:8]}"

    def issued_to(self, job: str, owner: str) -> bool:
        body, tag = job.removeprefix("job_")[:24], job[28:]
        return job.startswith("job_") and hmac.compare_digest(tag, self._mac("id", owner, body)[:8])


async def shared_secret(client: Any) -> bytes:
    """The installation's secret: made by whoever comes first, then read by all."""
    await client.set(keys.SECRET, secrets.token_bytes(32), nx=True)
    return await client.get(keys.SECRET)


@dataclass(frozen=True, slots=True)
class Submitted:
    id: str
    state: JobState
    created: bool  # False: the Idempotency-Key's job was there already


class Producer:
    """One api process's hand on the broker."""

    def __init__(self, client: Any, *, ids: JobIds, limits: Limits, name: str) -> None:
        self.client = client
        self.ids = ids
        self.limits = limits
        self.name = name
        self.jobs = Jobs(client)
        self._run = log.AsyncScripts(client)

    async def submit(
        self, request: JobRequested, *, reserve_bytes: int, body: object, idempotency_key: str | None = None
    ) -> Submitted:
        """Accept a job: its log exists when this returns.

        Args:
            reserve_bytes: the most that the job's keys may come to hold.
            body: what the client sent; with an Idempotency-Key, a second body must equal the first.

        Raises:
            Full: over the queue's or the bytes' bound; nothing was written.
            TooLarge: it would never fit.
            KeyReused: the Idempotency-Key came with another body.
        """
        keys.checked(request.model, "model")
        keys.checked(request.owner, "owner")
        request = replace(request, ttl_ms=int(self.limits.ttl_s * 1000))
        job = self.ids.new(request.owner, idempotency_key)
        existed = idempotency_key is not None and await self.client.exists(keys.log(job))
        if not existed:
            await self._reserve(job, request, reserve_bytes)
            if request.extra.get("webhook"):
                await self._run(log.owe_webhook(job, request.model))
        call = log.append(request, job=job, by=self.name, same_as=digest(body))
        status, *_ = await self._run(call)
        if status == "conflict":
            raise KeyReused(_REUSED)
        state = await self.jobs.state(job)
        if not state.status.final:
            await self._point_to(state, reserve_bytes)
        return Submitted(job, state, created=status == "ok")

    async def submitted_before(self, owner: str, *, body: object, idempotency_key: str) -> Submitted | None:
        """The job that the owner's Idempotency-Key has made already, as it is; None where there is none.

        Raises KeyReused: it was made of another body.
        """
        job = self.ids.new(keys.checked(owner, "owner"), idempotency_key)
        made_of = await self.client.hget(keys.head(job), log.digest_field(JobRequested.type))
        if made_of is None:
            return None
        if made_of.decode() != digest(body):
            raise KeyReused(_REUSED)
        try:
            state = await self.jobs.state(job)
        except Unknown:  # its keys have gone since
            return None
        if not state.status.final:
            [held] = await self._held([job])
            if not held:  # what it had reserved is gone: it is submitted anew, to the same log
                return None
            await self._point_to(state, held)
        return Submitted(job, state, created=False)

    def check_size(self, reserve_bytes: int) -> None:
        """Raise TooLarge for a job that would never fit."""
        if reserve_bytes > self.limits.max_bytes:
            raise TooLarge(reserve_bytes, self.limits.max_bytes)

    async def _reserve(self, job: str, request: JobRequested, bytes_: int) -> None:
        limits = self.limits
        self.check_size(bytes_)
        taken, live, held = await self._run(
            log.reserve(
                job, bytes_=bytes_, max_jobs=limits.max_jobs, max_bytes=limits.max_bytes, owner=request.owner,
                model=request.model,
            )
        )  # fmt: skip
        if not taken:
            raise Full(await self._retry_after(missing_bytes=held + bytes_ - limits.max_bytes), live)

    async def _point_to(self, state: JobState, reserve_bytes: int) -> None:
        """All that points to an accepted job; again where it was there, as a crash may have come in between."""
        job, request = state.id, state.requested

        def others(pipeline: Any) -> None:
            pipeline.zadd(keys.jobs(request.owner), {job: state.requested_at}, nx=True)
            if not state.terminal:
                pipeline.sadd(keys.owners(request.model), request.owner)
                pipeline.xadd(keys.bell(request.model, keys.TALKER), {"job": job}, maxlen=keys.BELLS_KEPT)

        calls = [log.hold(job, bytes_=reserve_bytes, owner=request.owner, model=request.model)]
        if not state.terminal:
            calls.append(log.post_pointer(keys.requests(request.model, request.owner), job))
        await self._run.all(calls, then=others)

    async def cancel(self, job: str, *, by_whom: str) -> JobState:
        """End a job that is not final; a final one stays as it is. Returns its state. Raises Unknown."""
        request = (await self.jobs.state(job)).requested
        call = log.append(JobCancelled(by_whom=by_whom), job=job, by=self.name, ttl_ms=request.ttl_ms)
        status, *_ = await self._run(call)
        if status == "gone":
            raise Unknown(job)
        state = await self.jobs.state(job)
        if status == "ok":
            with suppress(OutOfMemoryError):  # the log has it: renewals will tell
                await self.client.xadd(keys.TOMBSTONES, {"job": job}, maxlen=keys.TOMBSTONES_KEPT)
            bytes_ = int(await self.client.hget(keys.head(job), "bytes") or 0)
            retire = log.retire(job, model=request.model, owner=request.owner, ttl_ms=request.ttl_ms, bytes_=bytes_)
            for call in retire:
                reply = await self._run(call)
            if not await self.client.hexists(keys.head(job), "final") and await self.client.exists(keys.log(job)):
                # the broker has lost the cancel in the meantime: the job is live as before
                await self._run(log.hold(job, bytes_=reply[1], owner=request.owner, model=request.model))
        return state

    async def purge(self, job: str, owner: str, *, by_whom: str) -> None:
        """Cancel the job if it runs, and forget it: every key of it goes now, readable or not."""
        with suppress(Unknown, DecodeError, BrokenLog, OutOfMemoryError):
            await self.cancel(job, by_whom=by_whom)
        await self.client.delete(*keys.job_keys(job))
        await self.client.zrem(keys.jobs(owner), job)
        await self._run.all([log.give_back(job, owner), log.drop_webhook(job)])
        self.jobs.forget(job)

    async def _retry_after(self, *, missing_bytes: int) -> int:
        """Seconds until there is room: by the pace at which jobs have been leaving the live set.

        Where that alone would not free the bytes that are missing: until enough of the final jobs' keys go.
        """
        now_ms = broker_ms(await self.client.time())
        if missing_bytes > 0:
            final = await self.client.zrange(keys.EXPIRING, 0, _FINAL_LOOKED_AT, withscores=True)
            held = await self._held([member.decode().rsplit("/", 1)[1] for member, _ in final])
            total = int(await self.client.hget(keys.RESERVED, "") or 0)
            if total - sum(held) < missing_bytes:
                freed = itertools.accumulate(held)
                gone_at = [at for (_, at), bytes_ in zip(final, freed, strict=True) if bytes_ >= missing_bytes]
                return _seconds((gone_at[0] - now_ms) / 1000) if gone_at else _seconds(math.inf)
        times = [int(item) for item in await self.client.lrange(keys.RETIREMENTS, 0, -1)]
        if len(times) < 2:
            return 10
        pace = (times[0] - times[-1]) / (len(times) - 1) / 1000
        waited = (now_ms - times[0]) / 1000
        return _seconds(pace - waited if pace > waited else pace)

    async def _held(self, jobs: list[str]) -> list[int]:
        """The bytes that each of the jobs holds of the budget."""
        rows = await self.client.hmget(keys.RESERVED, jobs) if jobs else []
        return [int(row.rsplit(b"\n", 1)[1]) if row else 0 for row in rows]


def _seconds(value: float) -> int:
    """A Retry-After: whole seconds, from one to an hour."""
    return max(1, math.ceil(min(3600, value)))
