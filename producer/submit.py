"""Submit and cancel jobs. Log first, pointer second: what a crash leaves undone in between, the sweeper does."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from broker_schemas import keys, log
from broker_schemas.codec import digest
from broker_schemas.events import JobCancelled, JobRequested
from broker_schemas.job import JobState
from producer.follow import Expired, Jobs, Unknown

TOMBSTONES_KEPT = 10_000
BELLS_KEPT = 1_000


class Full(Exception):
    """The queue or the byte budget is full. `retry_after` in whole seconds."""

    def __init__(self, retry_after: int, live: int) -> None:
        super().__init__(f"{live} jobs are live and the budget is spent; try again in {retry_after} s")
        self.retry_after = retry_after


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


async def shared_secret(client) -> bytes:
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

    def __init__(self, client, *, ids: JobIds, limits: Limits, name: str) -> None:
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
            KeyReused: the Idempotency-Key came with another body.
        """
        request = replace(request, ttl_ms=int(self.limits.ttl_s * 1000))
        job = self.ids.new(request.owner, idempotency_key)
        now_ms = int(time.time() * 1000)
        existed = idempotency_key is not None and await self.client.exists(keys.log(job))
        if not existed:
            taken, live, _ = await self._run(
                log.reserve(
                    job, now_ms=now_ms, bytes_=reserve_bytes, max_jobs=self.limits.max_jobs,
                    max_bytes=self.limits.max_bytes, owner=request.owner, model=request.model,
                )
            )  # fmt: skip
            if not taken:
                raise Full(await self._retry_after(), live)
        call = log.append(request, job=job, by=self.name, same_as=digest(body))
        status, *_ = await self._run(call)
        if status == "conflict":
            raise KeyReused("this Idempotency-Key was used for another request: use a new key for a new request")
        state = await self.jobs.state(job)
        if not state.status.final:  # again where it was there already: a crash may have come between
            await self.client.zadd(keys.jobs(request.owner), {job: now_ms}, nx=True)
            if not state.terminal:
                await self.post_request(job, request.model, request.owner)
        return Submitted(job, state, created=status == "ok")

    async def post_request(self, job: str, model: str, owner: str) -> None:
        """Point the talkers to a job whose log is written."""
        await self.client.sadd(keys.owners(model), owner)
        await self._run(log.post_pointer(keys.requests(model, owner), job))
        await self.client.xadd(keys.bell(model, keys.TALKER), {"job": job}, maxlen=BELLS_KEPT)

    async def cancel(self, job: str, *, by_whom: str) -> JobState:
        """End a job that is not final; a final one stays as it is. Returns its state. Raises Unknown."""
        ttl_ms = (await self.jobs.state(job)).request.ttl_ms
        call = log.append(JobCancelled(by_whom=by_whom), job=job, by=self.name, ttl_ms=ttl_ms)
        status, *_ = await self._run(call)
        if status == "gone":
            raise Unknown(job)
        state = await self.jobs.state(job)
        if status == "ok":
            await self.client.xadd(keys.TOMBSTONES, {"job": job}, maxlen=TOMBSTONES_KEPT)
            await self._retire(state)
        return state

    async def purge(self, job: str, owner: str, *, by_whom: str) -> None:
        """Cancel the job if it runs, and forget it: every key of it goes now."""
        with suppress(Unknown):
            await self.cancel(job, by_whom=by_whom)
        await self.client.delete(*keys.job_keys(job))
        await self.client.zrem(keys.jobs(owner), job)
        await self.client.zrem(keys.EXPIRING, f"{owner}/{job}")
        self.jobs.forget(job)

    async def _retire(self, state: JobState) -> None:
        request = state.request
        await self.client.zadd(keys.EXPIRING, {f"{request.owner}/{state.id}": state.ended_at + request.ttl_ms})
        for call in log.retire(state.id, model=request.model, owner=request.owner):
            await self._run(call)

    async def _retry_after(self) -> int:
        """Seconds until a place is free, by the pace at which jobs have been leaving."""
        times = [int(item) for item in await self.client.lrange(keys.RETIREMENTS, 0, keys.RETIREMENTS_KEPT - 1)]
        if len(times) < 2:
            return 10
        pace = (times[0] - times[-1]) / (len(times) - 1) / 1000
        waited = time.time() - times[0] / 1000
        return max(1, min(600, math.ceil(pace - waited if pace > waited else pace)))


__all__ = ["Expired", "Full", "JobIds", "KeyReused", "Limits", "Producer", "Submitted", "Unknown", "shared_secret"]
