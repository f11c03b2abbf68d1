"""Whatever dies, and whenever: one sha256, no chunk twice, no gap, events in order (rules 1, 2 and 4)."""

from __future__ import annotations

import asyncio
import hashlib
import random
import signal
import time

import pytest

from broker_schemas.job import JobState, Status, fold

FRAMES = {"instant": 800, "real": 430}


async def submit(patron, nursery) -> str:
    song = nursery.song(7, FRAMES[nursery.kind])
    return (await patron.submit(song, reserve_bytes=1, body=1)).id


async def outcome(patron, job: str, within_s: float = 60) -> tuple[JobState, str]:
    """The final state and the sha256 of the sound; the log's order is checked by the fold."""
    async with asyncio.timeout(within_s):
        while not (await patron.jobs.state(job)).status.final:
            await asyncio.sleep(0.05)
    state = fold(await patron.jobs.events(job))
    chunks = await patron.jobs.chunks(job)
    assert [chunk.index for chunk in chunks] == list(range(state.chunks))
    assert [chunk.start for chunk in chunks] == [sum(len(c.pcm) // 4 for c in chunks[:n]) for n in range(len(chunks))]
    return state, hashlib.sha256(b"".join(chunk.pcm for chunk in chunks)).hexdigest()


async def undisturbed(patron, nursery) -> str:
    """The song's sha256 with nobody killed; leaves one worker of each role running."""
    nursery.start("talker")
    nursery.start("acoustic")
    state, sha = await outcome(patron, await submit(patron, nursery))
    assert state.status is Status.COMPLETED
    return sha


@pytest.mark.redis
@pytest.mark.timeout(900)
@pytest.mark.parametrize("nursery", ["real"], indirect=True)
@pytest.mark.parametrize("victims", [("talker",), ("acoustic",), ("talker", "acoustic")])
async def test_kill_9_at_20_random_moments(patron, nursery, victims):
    expected = await undisturbed(patron, nursery)
    began = time.monotonic()
    await outcome(patron, await submit(patron, nursery))
    length_s = time.monotonic() - began
    alive = dict(zip(("talker", "acoustic"), nursery.pids, strict=True))
    moments = random.Random(5)
    resumed = 0
    for kill in range(20):
        job = await submit(patron, nursery)
        if kill % 2:  # half of them while a victim is at it
            while victims[-1] not in (await patron.jobs.state(job)).admitted_at:
                await asyncio.sleep(0.01)
            await asyncio.sleep(moments.uniform(0, length_s / 4))
        else:
            await asyncio.sleep(moments.uniform(0, length_s))
        for role in victims:
            nursery.kill(alive[role])
            alive[role] = nursery.start(role)
        state, sha = await outcome(patron, job)
        assert (state.status, sha) == (Status.COMPLETED, expected), state.error
        resumed += sum(attempt > 1 for attempt in state.attempts.values())
    assert resumed >= 5  # the kills did hit running songs


@pytest.mark.redis
@pytest.mark.parametrize("role", ["talker", "acoustic"])
async def test_a_frozen_worker_wakes_to_find_its_writes_refused(patron, nursery, role):
    expected = await undisturbed(patron, nursery)
    frozen = nursery.pids[("talker", "acoustic").index(role)]
    job = await submit(patron, nursery)
    await asyncio.sleep(0.8)
    nursery.kill(frozen, signal.SIGSTOP)
    nursery.start(role)
    await asyncio.sleep(1.8)  # past its lease
    nursery.kill(frozen, signal.SIGCONT)
    state, sha = await outcome(patron, job)
    assert (state.status, sha) == (Status.COMPLETED, expected)
    assert state.attempts[role] == 2
    events = await patron.jobs.events(job)
    taken_over = next(event.seq for event in events if event.type == "job.resumed")
    first = next(event.by for event in events if event.type == "job.admitted" and event.data["role"] == role)
    late = [event.type for event in events if event.seq > taken_over and event.by == first]
    assert set(late) <= {"rows.freed"}
    # and it is fit for the next job
    assert (await outcome(patron, await submit(patron, nursery)))[1] == expected


@pytest.mark.redis
async def test_a_graceful_stop_hands_over_at_once_and_without_a_strike(patron, nursery):
    expected = await undisturbed(patron, nursery)
    talker, sounder = nursery.pids
    nursery.start("talker")
    nursery.start("acoustic")
    job = await submit(patron, nursery)
    await asyncio.sleep(0.8)
    for pid in (talker, sounder):
        nursery.kill(pid, signal.SIGTERM)
    state, sha = await outcome(patron, job)
    assert (state.status, sha) == (Status.COMPLETED, expected)


@pytest.mark.redis
async def test_redis_is_killed_and_comes_back(patron, nursery, server):
    expected = await undisturbed(patron, nursery)
    moments = random.Random(3)
    for _ in range(4):
        jobs = [await submit(patron, nursery) for _ in range(2)]
        await asyncio.sleep(moments.uniform(0, 1.5))
        server.kill()
        await asyncio.sleep(moments.uniform(0, 1.5))
        server.start()
        for job in jobs:
            state, sha = await outcome(patron, job)
            assert (state.status, sha) == (Status.COMPLETED, expected), state.error


@pytest.mark.redis
async def test_redis_comes_back_without_its_newest_writes(patron, nursery, server):
    """The append-only file is cut short while the workers live on: jobs whose acceptance survived end as ever."""
    expected = await undisturbed(patron, nursery)
    moments = random.Random(11)
    survived = 0
    for _ in range(6):
        jobs = [await submit(patron, nursery), await submit(patron, nursery)]
        await asyncio.sleep(moments.uniform(0.5, 2.0))
        server.kill()
        file = server.append_only_file
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) - moments.randrange(1, 60_000)])
        server.start()
        for job in jobs:
            if not await patron.client.exists(f"sl:{{{job}}}:log"):
                continue
            survived += 1
            state, sha = await outcome(patron, job)
            assert (state.status, sha) == (Status.COMPLETED, expected), state.error
    assert survived >= 4
