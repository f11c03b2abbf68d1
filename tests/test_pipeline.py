"""The road of a job, with an instant model: api's producer, talker, acoustic worker, follower."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

import pytest

from broker_schemas import keys
from broker_schemas.events import Event
from broker_schemas.job import Status, fold
from producer.follow import Chunk
from tests import stand_ins
from tests.stand_ins import ENDLESS, acoustic, request, running, talker
from tests.waiting import until


async def listen(producer, job: str, **kwargs) -> tuple[list[Event], list[Chunk]]:
    events, chunks = [], []
    async for item in producer.jobs.follow(job, **kwargs):
        (events if isinstance(item, Event) else chunks).append(item)
    return events, chunks


def sha256(chunks: list[Chunk]) -> str:
    return hashlib.sha256(b"".join(chunk.pcm for chunk in chunks)).hexdigest()


async def submit(producer, **kwargs) -> str:
    return (await producer.submit(request(**kwargs), reserve_bytes=1000, body=kwargs)).id


async def test_a_song_goes_the_whole_road(producer, broker):
    with running(talker(broker), acoustic(broker)):
        job = await submit(producer, frames=430)
        events, chunks = await listen(producer, job)
    state = fold(events)
    assert state.status is Status.COMPLETED
    assert (state.frames, state.reason) == (430, "length")
    assert [chunk.index for chunk in chunks] == list(range(stand_ins.PLAN.count(430)))
    assert state.samples == sum(len(chunk.pcm) for chunk in chunks) // 4


@pytest.mark.parametrize("frames", [1, 57, 199, 200, 201, 250, 430, 750])
async def test_both_chunk_modes_give_the_same_bytes(producer, broker, frames):
    sums = set()
    for async_chunk in (True, False):
        with running(talker(broker), acoustic(broker)):
            job = await submit(producer, frames=frames, params={"async_chunk": async_chunk})
            events, chunks = await listen(producer, job)
        assert fold(events).status is Status.COMPLETED
        sums.add(sha256(chunks))
    assert len(sums) == 1


async def test_the_model_may_end_the_song(producer, broker):
    with running(talker(broker), acoustic(broker)):
        job = await submit(producer, frames=9000, params={"ends_at": 311})
        events, _ = await listen(producer, job)
    assert (fold(events).frames, fold(events).reason) == (310, "stop")


async def test_a_song_without_frames_fails_and_says_so(producer, broker):
    with running(talker(broker), acoustic(broker)):
        for ends_at in (0, 1):
            job = await submit(producer, params={"ends_at": ends_at})
            events, chunks = await listen(producer, job)
            state = fold(events)
            assert state.status is Status.FAILED and not chunks
            assert state.error.code == "no_frames" and "before its first frame" in state.error.message


async def test_many_songs_keep_their_bytes(producer, broker):
    async def one(seed: int) -> str:
        job = await submit(producer, seed=seed, frames=120 + 37 * (seed % 9))
        return sha256((await listen(producer, job))[1])

    with running(talker(broker), acoustic(broker)):
        alone = [await one(seed) for seed in range(8)]
    with running(talker(broker), talker(broker), acoustic(broker), acoustic(broker)):
        together = await asyncio.gather(*(one(seed) for seed in range(8)))
    assert alone == together


async def test_all_traces_go(producer, broker):
    client = broker.client()
    with running(talker(broker), acoustic(broker)):
        job = (await producer.submit(request(ttl_ms=1, frames=250), reserve_bytes=5, body=1)).id
        await listen(producer, job)
        await until(lambda: not client.exists(keys.LIVE))
    sound = sum(len(fields[b"pcm"]) for _, fields in client.xrange(keys.audio(job)))
    assert client.hget(keys.RESERVED, "") == str(sound).encode()  # until its keys go
    assert all(0 < client.pttl(key) <= 60_000 for key in keys.job_keys(job) if client.exists(key))
    assert not client.exists(keys.spans(job)) and not client.exists(keys.carry(job))
    assert client.xlen(keys.requests("instant", "anonymous")) == 0 and client.xlen(keys.ready("instant")) == 0


async def test_cancel_in_mid_song(producer, broker):
    """The tombstone does it: no lease is renewed meanwhile."""
    worker = talker(broker, runner=stand_ins.InstantRunner(step_s=0.002), settings=replace(stand_ins.QUICK, ttl_s=600))
    worker._ownership.leases.renew = lambda: None
    with running(worker, acoustic(broker)):
        job = await submit(producer, frames=ENDLESS)
        async for item in producer.jobs.follow(job):
            if isinstance(item, Chunk):
                break
        await producer.cancel(job, by_whom="test")
        events, _ = await listen(producer, job)
        other = await submit(producer, frames=50)
        assert fold((await listen(producer, other))[0]).status is Status.COMPLETED
    assert fold(events).status is Status.CANCELLED
    freed = [event for event in await producer.jobs.events(job) if event.type == "rows.freed"]
    assert [event.payload.why for event in freed] == ["job.cancelled"]
