"""Whatever dies, and whenever: one sha256, no chunk twice, no gap, events in order (rules 1, 2 and 4)."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
import signal
import time
from collections.abc import Callable

import pytest

from broker_schemas.job import JobState, Status, fold

# By model: the seed of a song that it does not end, and its frames.
SONGS = {"instant": (2, 800), "minimax_music3": (2, 330), "qwen3_tts": (3, 40)}
BYTES_A_SAMPLE = {"instant": 4, "minimax_music3": 4, "qwen3_tts": 2}  # of all channels


async def submit(patron, nursery, **params) -> str:
    song = nursery.song(*SONGS[nursery.model], **params)
    return (await patron.submit(song, reserve_bytes=1, body=1)).id


async def outcome(patron, job: str, within_s: float = 180) -> tuple[JobState, str]:
    """The final state and the sha256 of the sound; the log's order is checked by the fold."""
    async with asyncio.timeout(within_s):
        while not (await patron.jobs.state(job)).status.final:
            await asyncio.sleep(0.05)
    state = fold(await patron.jobs.events(job))
    chunks = await patron.jobs.chunks(job)
    assert [chunk.index for chunk in chunks] == list(range(state.chunks))
    samples = [len(chunk.pcm) // BYTES_A_SAMPLE[state.request.model] for chunk in chunks]
    assert [chunk.start for chunk in chunks] == [sum(samples[:n]) for n in range(len(chunks))]
    return state, hashlib.sha256(b"".join(chunk.pcm for chunk in chunks)).hexdigest()


async def undisturbed(patron, nursery) -> tuple[JobState, str]:
    """The song with nobody killed; leaves one worker of each role running."""
    nursery.start("talker")
    nursery.start("acoustic")
    state, sha = await outcome(patron, await submit(patron, nursery))
    assert (state.status, state.frames) == (Status.COMPLETED, SONGS[nursery.model][1])
    return state, sha


async def handed_on(patron, job: str, expected: str, *roles: str) -> JobState:
    """The job's final state: it has changed hands in these roles, and sounds as if it had not."""
    state, sha = await outcome(patron, job)
    assert (state.status, sha) == (Status.COMPLETED, expected), state.error
    assert all(state.attempts[role] > 1 for role in roles)
    return state


def done(state: JobState, role: str) -> int:
    """What the role has written of the song: spans or chunks."""
    return state.spans if role == "talker" else state.chunks


async def freeze_at_work(
    patron, nursery, job: str, pid: int, role: str, *, after: int, of: int,
    begun: Callable[[JobState], object] = lambda state: True,
) -> bool:  # fmt: skip
    """Freeze the role's only worker once the job's log has `after` of its `of` spans or chunks, and has `begun`.

    False where the last of them was written before it stood still; it goes on then. A worker that stands still in
    mid-song cannot finish it, however slow the machine.
    """
    state = await patron.jobs.state(job)
    while not state.status.final and (role not in state.admitted_at or done(state, role) < after or not begun(state)):
        await asyncio.sleep(0.005)
        state = await patron.jobs.state(job)
    nursery.kill(pid, signal.SIGSTOP)
    await patron.client.ping()  # what it had sent has been written
    at_work = done(await patron.jobs.state(job), role) < of
    if not at_work:
        nursery.kill(pid, signal.SIGCONT)
    return at_work


async def submit_and_freeze(patron, nursery, pid: int, role: str, *, after: int, of: int) -> str:
    """A job whose worker, of that role, stands still in the middle of it."""
    while True:
        job = await submit(patron, nursery)
        if await freeze_at_work(patron, nursery, job, pid, role, after=after, of=of):
            return job
        await outcome(patron, job)


@pytest.mark.redis
@pytest.mark.timeout(900)
@pytest.mark.parametrize("nursery", [pytest.param(2, id="real")], indirect=True)
@pytest.mark.parametrize("victims", [("talker",), ("acoustic",), ("talker", "acoustic")])
async def test_kill_9_at_20_random_moments(patron, nursery, victims):
    whole, expected = await undisturbed(patron, nursery)
    began = time.monotonic()
    await outcome(patron, await submit(patron, nursery))
    length_s = time.monotonic() - began
    alive = dict(zip(("talker", "acoustic"), nursery.pids, strict=True))
    moments = random.Random(5)
    for kill in range(20):
        aimed = victims[kill // 2 % len(victims)] if kill % 2 else None
        if aimed:  # half of them in mid-song, wherever the machine's speed puts that
            of = done(whole, aimed)
            job = await submit_and_freeze(patron, nursery, alive[aimed], aimed, after=moments.randrange(of), of=of)
        else:
            job = await submit(patron, nursery)
            await asyncio.sleep(moments.uniform(0, length_s))
        for role in victims:
            nursery.kill(alive[role])
            alive[role] = nursery.start(role)
        state, sha = await outcome(patron, job)
        assert (state.status, sha) == (Status.COMPLETED, expected), state.error
        assert not aimed or state.attempts[aimed] > 1


@pytest.mark.redis
@pytest.mark.parametrize("role", ["talker", "acoustic"])
async def test_a_frozen_worker_wakes_to_find_its_writes_refused(patron, nursery, role):
    whole, expected = await undisturbed(patron, nursery)
    frozen = nursery.pids[("talker", "acoustic").index(role)]
    job = await submit_and_freeze(patron, nursery, frozen, role, after=1, of=done(whole, role))
    nursery.start(role)
    async with asyncio.timeout(180):
        while (await patron.jobs.state(job)).attempts[role] == 1:  # its lease lapses, and the other takes over
            await asyncio.sleep(0.05)
    nursery.kill(frozen, signal.SIGCONT)
    state, sha = await outcome(patron, job)
    assert (state.status, sha) == (Status.COMPLETED, expected)
    events = await patron.jobs.events(job)
    first = next(event.by for event in events if event.type == "job.admitted" and event.data["role"] == role)
    after_it = itertools.dropwhile(lambda event: event.type != "job.resumed" or event.data["role"] != role, events)
    assert next(after_it).by != first
    late = [event.type for event in after_it if event.by == first]
    assert set(late) <= {"rows.freed"}
    # and it is fit for the next job
    assert (await outcome(patron, await submit(patron, nursery)))[1] == expected


@pytest.mark.redis
async def test_a_graceful_stop_hands_over_at_once_and_without_a_strike(patron, nursery):
    whole, expected = await undisturbed(patron, nursery)
    talker, sounder = nursery.pids
    job = await submit_and_freeze(patron, nursery, talker, "talker", after=1, of=whole.spans)
    nursery.start("talker")
    nursery.start("acoustic")
    for pid in (talker, sounder):
        nursery.kill(pid, signal.SIGTERM)
    nursery.kill(talker, signal.SIGCONT)
    state, sha = await outcome(patron, job)
    assert (state.status, sha) == (Status.COMPLETED, expected)
    assert state.attempts["talker"] > 1


@pytest.mark.redis
async def test_redis_is_killed_and_comes_back(patron, nursery, server):
    _, expected = await undisturbed(patron, nursery)
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
    _, expected = await undisturbed(patron, nursery)
    moments = random.Random(11)
    survived = 0
    for turn in range(6):
        jobs = [await submit(patron, nursery), await submit(patron, nursery)]
        accepted = server.append_only_file.stat().st_size
        while turn % 2 and not (await patron.jobs.state(jobs[1])).draws:
            await asyncio.sleep(0.01)
        await asyncio.sleep(moments.uniform(0.5, 2.0))
        server.kill()
        file = server.append_only_file
        whole = file.read_bytes()
        # every other time only what came after both jobs were accepted
        oldest = accepted if turn % 2 else len(whole) - 60_000
        file.write_bytes(whole[: moments.randrange(oldest, len(whole))])
        server.start()
        for job in jobs:
            if not await patron.client.exists(f"sl:{{{job}}}:log"):
                continue
            survived += 1
            state, sha = await outcome(patron, job)
            assert (state.status, sha) == (Status.COMPLETED, expected), state.error
    assert survived >= 6
