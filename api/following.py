"""Following a job for a client that may stay for long: through broker restarts and through silence."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

from api.ending import end
from api.errors import BROKER_AWAY, ended_without_sound
from api.service import Service
from broker_schemas.events import Event
from broker_schemas.job import JobState, Status
from producer.follow import Chunk, Expired, Unknown

_Wanted = TypeVar("_Wanted")

_log = logging.getLogger(__name__)
_RETRY_S = 0.5


async def steadily(
    service: Service, job: str, *, after_seq: int = 0, after_chunk: int = -1, sound: bool = True
) -> AsyncGenerator[Event | Chunk, None]:
    """As `Jobs.follow`, and lives through the broker's restarts.

    Raises:
        Expired: the job's keys are gone.
        redis.exceptions.ConnectionError: the broker was away for longer than `broker_patience_s`.
    """
    away_since: float | None = None
    while True:
        try:
            producer = await service.producer()
            await service.client().ping()
            away_since = None
            following = producer.jobs.follow(job, after_seq=after_seq, after_chunk=after_chunk, sound=sound)
            async with aclosing(following):
                async for item in following:
                    if isinstance(item, Event):
                        after_seq = max(after_seq, item.seq)
                    else:
                        after_chunk = item.index
                    yield item
            return
        except Unknown:
            raise Expired(job) from None
        except BROKER_AWAY as error:
            now = time.monotonic()
            away_since = away_since or now
            if now - away_since > service.settings.broker_patience_s:
                raise
            _log.warning("job %s is followed again in %s s: %s", job, _RETRY_S, error)
            await asyncio.sleep(_RETRY_S)


async def with_pauses(
    items: AsyncGenerator[object, None], every_s: float, wanted: type[_Wanted]
) -> AsyncGenerator[_Wanted | None, None]:
    """The items of the wanted type, and None whenever none came for `every_s` seconds."""
    coming: asyncio.Future[object] | None = None
    quiet_since = time.monotonic()
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(items))
            await asyncio.wait({coming}, timeout=max(0.0, quiet_since + every_s - time.monotonic()))
            if coming.done():
                done, coming = coming, None
                try:
                    item = done.result()
                except StopAsyncIteration:
                    return
                if isinstance(item, wanted):
                    yield item
                    quiet_since = time.monotonic()
            if time.monotonic() - quiet_since >= every_s:
                yield None
                quiet_since = time.monotonic()
    finally:
        if coming is not None:
            await end(coming)
        await items.aclose()


async def until_final(service: Service, job: str) -> JobState:
    """The job's state once it is final; raises Expired."""
    following = steadily(service, job, sound=False)
    async with aclosing(following):
        async for _ in following:
            pass
    return await final_state(service, job)


async def pcm(service: Service, job: str, *, after_chunk: int = -1) -> AsyncGenerator[bytes, None]:
    """The job's sound, chunk by chunk, to its end.

    Raises:
        ApiError: the job failed or was cancelled.
        Expired: the job's keys are gone.
    """
    following = steadily(service, job, after_chunk=after_chunk)
    async with aclosing(following):
        async for item in following:
            if isinstance(item, Chunk):
                yield item.pcm
    state = await final_state(service, job)
    if state.status is not Status.COMPLETED:
        raise ended_without_sound(state)


async def final_state(service: Service, job: str) -> JobState:
    """The state of a job that was just seen to end; raises Expired."""
    try:
        return await (await service.producer()).jobs.state(job)
    except Unknown:
        raise Expired(job) from None
