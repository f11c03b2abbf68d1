"""What workers do when things break in between: connections, steps, leases, a broker that lost its newest writes."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager

import pytest
import redis

from broker_schemas import events as ev
from broker_schemas import keys, log
from broker_schemas.codec import unpack
from broker_schemas.events import encode_open
from broker_schemas.job import Status
from tests.stand_ins import (
    ENDLESS,
    QUICK,
    InstantAcoustic,
    InstantRunner,
    acoustic,
    each_append,
    request,
    running,
    sweeper,
    talker,
)
from tests.test_pipeline import listen, sha256, submit
from tests.waiting import PATIENCE_S, reach, until

only_redis = pytest.mark.parametrize("broker", ["redis"], indirect=True)


@contextmanager
def sweeping(broker):
    ended = threading.Event()
    thread = threading.Thread(target=sweeper(broker).run, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


async def completed(producer, job: str) -> str:
    state = await reach(producer, job, lambda state: state.status.final)
    assert state.status is Status.COMPLETED, state.error
    return sha256(await producer.jobs.chunks(job))


async def alone(producer, broker, **song) -> str:
    with running(talker(broker), acoustic(broker)):
        return await completed(producer, await submit(producer, **song))


class Flaky:
    """A client whose first call of one command breaks."""

    def __init__(self, client, command: str) -> None:
        self._client, self._command, self.broken = client, command, False

    def __getattr__(self, name: str):
        call = getattr(self._client, name)
        if name != self._command:
            return call

        def once(*args, **kwargs):
            if self.broken:
                return call(*args, **kwargs)
            self.broken = True
            raise redis.ConnectionError("dropped")

        return once


@pytest.mark.parametrize("role", ["talker", "acoustic"])
async def test_a_connection_that_drops_after_the_lease_was_taken(producer, broker, role):
    workers = {"talker": talker(broker), "acoustic": acoustic(broker)}
    flaky = workers[role]._ownership.client = Flaky(broker.client(), "pipeline")
    with sweeping(broker), running(*workers.values()):
        await completed(producer, await submit(producer, frames=250))
    assert flaky.broken and not workers[role]._ownership.leases.held()


async def test_a_worker_does_not_take_what_it_has(producer, broker):
    """Its lease lapses while the broker is away, and the bell rings before its keeper renews."""
    runner = InstantRunner(step_s=0.002)
    jobs, client = [], broker.client()

    def lapse() -> None:
        if jobs and 300 <= runner.steps < 500 and runner.steps % 10 == 0:
            client.hset(keys.lease(jobs[0], "talker"), "expires", 1)
            client.xadd(keys.bell("instant", "talker"), {"job": jobs[0], "why": "lapsed"})

    runner.before_step = lapse
    with running(talker(broker, runner=runner), acoustic(broker)):
        job = await submit(producer, frames=900)
        jobs.append(job)
        sound = await completed(producer, job)
    assert sound == await alone(producer, broker, frames=900)


async def test_songs_that_were_begun_go_on_though_the_acoustic_stage_is_behind(producer, broker):
    runner, leaving = InstantRunner(), threading.Event()

    def stay_in_mid_song() -> None:
        if any(history.draw == 600 for history in runner._jobs.values()):
            assert leaving.wait(PATIENCE_S)

    runner.before_step = stay_in_mid_song
    with sweeping(broker), running(acoustic(broker)):
        jobs = [await submit(producer, seed=seed, frames=700) for seed in range(3)]
        with running(talker(broker, runner=runner, ready_limit=3)) as stop:
            for job in jobs:
                await reach(producer, job, lambda state: state.spans >= 1)
            stop.set()
            leaving.set()
        for job in jobs:
            assert not (await producer.jobs.state(job)).terminal
        with running(talker(broker, ready_limit=3)):
            for job in jobs:
                await completed(producer, job)


async def test_songs_that_are_refused_make_room_for_others(producer, broker):
    worker = talker(broker, ready_limit=2)
    refused = []

    def cancelled_just_before(entry, write):
        if entry.payload.type == "span.terminal" and len(refused) < 4:
            refused.append(entry.lease.job)
            call = log.append(ev.JobCancelled(by_whom="me"), job=entry.lease.job, by="me", ttl_ms=60_000)
            log.Scripts(broker.client())(call)
        write()

    each_append(worker._ownership.publisher, cancelled_just_before)
    with sweeping(broker), running(worker, acoustic(broker)):
        for seed in range(5):
            await reach(producer, await submit(producer, seed=seed, frames=50), lambda state: state.status.final)
        assert len(refused) == 4
        assert not worker._unready and not worker._ownership.leases.held()


async def test_a_step_that_raises_is_a_strike(producer, broker):
    struck = threading.Event()

    def poison():
        struck.set()
        raise RuntimeError("device error")

    job = await submit(producer)
    lives = 0
    with sweeping(broker):
        while not (await producer.jobs.state(job)).status.final:
            lives += 1
            assert lives <= QUICK.max_strikes + 2
            struck.clear()
            with pytest.raises(RuntimeError), running(talker(broker, runner=InstantRunner(before_step=poison))):
                await reach(producer, job, lambda state: struck.is_set() or state.error)
                if not struck.is_set():
                    raise RuntimeError
    error = (await producer.jobs.state(job)).error
    assert error.code == "worker_lost" and "device error" in error.message


@pytest.mark.parametrize("async_chunk", [True, False])
@pytest.mark.parametrize("frames", [199, 200, 201, 202, 299, 300, 301, 302])
async def test_the_acoustic_stage_may_change_hands_after_any_window(producer, broker, frames, async_chunk):
    expected = await alone(producer, broker, frames=frames)
    job = await submit(producer, frames=frames, params={"async_chunk": async_chunk})
    with running(talker(broker)):
        await reach(producer, job, lambda state: state.terminal)

    for windows in range(1, 3):
        slow = InstantAcoustic(window_s=0.1)
        with sweeping(broker), running(acoustic(broker, model=slow)):
            await reach(producer, job, lambda state, n=windows: state.chunks >= n or state.status.final)
    with sweeping(broker), running(acoustic(broker)):
        assert await completed(producer, job) == expected


async def test_an_event_of_a_newer_version_harms_nobody_else(producer, broker):
    client = broker.client()
    job = await submit(producer)
    newer = encode_open(ev.RowsFreed(rows=1, step=1, why="", token=""), job=job, by="x").replace(b"\xa31.0", b"\xa32.0")
    client.xadd(keys.log(job), {"e": b"\x87" + newer + b"\xa3seq\x02\xa2at\x00"}, id="2-0")
    unreadable = await submit(producer, seed=2)
    first = client.xrange(keys.log(unreadable))[0][1][b"e"].replace(b"\xa31.0", b"\xa32.0")
    client.delete(keys.log(unreadable))
    client.xadd(keys.log(unreadable), {"e": first}, id="1-0")
    assert unpack(first)["v"] == "2.0"
    with sweeping(broker), running(talker(broker), acoustic(broker)):
        await completed(producer, await submit(producer, seed=3, frames=50))
    await producer.purge(job, "anonymous", by_whom="me")
    await producer.purge(unreadable, "anonymous", by_whom="me")
    assert not client.zcard(keys.LIVE)
    assert client.hmget(keys.RESERVED, job, unreadable) == [None, None]


# --- a broker that lost its newest writes -----------------------------------------------------------------------------


def snapshot(client) -> dict[bytes, bytes]:
    names = list(client.scan_iter())
    pipeline = client.pipeline(transaction=True)
    for name in names:
        pipeline.dump(name)
    return {name: raw for name, raw in zip(names, pipeline.execute(), strict=True) if raw}


def rewind(client, kept: dict[bytes, bytes]) -> None:
    """The broker as it was."""
    pipeline = client.pipeline(transaction=True)
    pipeline.flushall()
    for name, raw in kept.items():
        pipeline.restore(name, 0, raw)
    pipeline.execute()


@pytest.mark.parametrize("async_chunk", [True, False])
@pytest.mark.parametrize("role", ["talker", "acoustic"])
@only_redis
async def test_whatever_the_broker_forgets_the_song_ends_as_ever(producer, broker, role, async_chunk):
    """It is rewound after each event of a role, to what was before that; the workers live on."""
    client = broker.client()
    expected = await alone(producer, broker, frames=530)
    kinds = ("span.window", "span.terminal", "codes.logged") if role == "talker" else ("audio.chunk", "job.completed")
    for place in range(7):
        workers = [
            talker(broker, runner=InstantRunner(step_s=0.0005)),
            acoustic(broker, model=InstantAcoustic(window_s=0.02)),
        ]
        counted = []

        def forgotten(entry, write, counted=counted, place=place):
            if entry.payload.type not in kinds:
                return write()
            counted.append(1)
            before = snapshot(client) if len(counted) == place + 1 else None
            write()
            if before:
                rewind(client, before)
            return None

        each_append(workers[role == "acoustic"]._ownership.publisher, forgotten)
        with sweeping(broker), running(*workers):
            job = await submit(producer, frames=530, params={"async_chunk": async_chunk})
            assert await completed(producer, job) == expected
        assert not any(worker._ownership.leases.held() for worker in workers)


async def test_job_completed_needs_its_chunks(producer, broker):
    job = await submit(producer)
    run = log.Scripts(broker.client())
    completion = ev.JobCompleted(samples=1, frames=1, reason="stop")
    assert run(log.append(completion, job=job, by="x", ttl_ms=1, after=1)) == ["gap", 0, "0"]
    assert run(log.append(completion, job=job, by="x", ttl_ms=60_000, after=0))[0] == "ok"


async def test_a_follower_of_a_log_that_went_back_hears_the_end(producer, broker):
    client = broker.client()
    job = await submit(producer)
    before = snapshot(client)
    run = log.Scripts(client)
    for token in "abc":
        run(log.append(ev.RowsFreed(rows=1, step=1, why=token, token=token), job=job, by="x"))
    told = []

    async def follow() -> None:
        async for event in producer.jobs.follow(job):
            told.append(event.type)

    following = asyncio.create_task(follow())
    while len(told) < 4:
        await asyncio.sleep(0.01)
    rewind(client, before)
    producer.jobs.forget(job)
    await producer.cancel(job, by_whom="me")
    await asyncio.wait_for(following, PATIENCE_S)
    assert told == ["job.requested", *["rows.freed"] * 3, "job.cancelled"]


async def test_a_log_that_stays_broken_is_said_to_be(producer, broker):
    from broker_schemas.job import BrokenLog

    job = await submit(producer)
    body = encode_open(ev.AudioChunk(index=5, samples=1, start_sample=0, sha256=""), job=job, by="x")
    broker.client().xadd(keys.log(job), {"e": b"\x87" + body + b"\xa3seq\x02\xa2at\x00"}, id="2-0")
    with pytest.raises(BrokenLog):
        await asyncio.wait_for(listen(producer, job), PATIENCE_S)


async def test_the_publisher_s_own_watchdog_ends_a_stuck_process(broker, producer):
    from dataclasses import replace

    worker = talker(broker, settings=replace(QUICK, stall_s=0.5))
    ended = threading.Event()
    worker._ownership.watchdog.end = lambda code: None
    publisher = worker._ownership.publisher
    publisher._watchdog.end = lambda code: ended.set()

    def refuse(due, logged):
        raise redis.ResponseError("WRONGTYPE")

    append, publisher._append = publisher._append, refuse
    with running(worker):
        await submit(producer, frames=ENDLESS)
        await until(ended.is_set)
        publisher._append = append


@only_redis
async def test_out_of_memory_a_song_can_still_be_cancelled(producer, broker):
    client = broker.client()
    with running(talker(broker, runner=InstantRunner(step_s=0.001)), acoustic(broker)):
        job = await submit(producer, frames=ENDLESS)
        await reach(producer, job, lambda state: state.chunks >= 2)
        try:
            client.config_set("maxmemory", 1_000_000)
            assert (await producer.cancel(job, by_whom="me")).status is Status.CANCELLED
            await producer.purge(job, "anonymous", by_whom="me")
        finally:
            client.config_set("maxmemory", 0)
    assert not [key for key in client.scan_iter() if job.encode() in key]


async def test_songs_without_frames_make_room_for_others(producer, broker):
    with sweeping(broker), running(talker(broker, ready_limit=2), acoustic(broker)):
        for seed in range(4):
            job = await submit(producer, seed=seed, params={"ends_at": 0})
            await reach(producer, job, lambda state: state.status is Status.FAILED)
        await completed(producer, await submit(producer, frames=50))


async def test_a_publisher_that_dies_takes_its_worker_down_and_frees_its_jobs(producer, broker):
    runner, dying = InstantRunner(), threading.Event()
    runner.before_step = lambda: runner.steps == 1000 and dying.wait(PATIENCE_S)
    worker = talker(broker, runner=runner)

    def die(due, logged):
        raise ZeroDivisionError("in the publisher")

    with sweeping(broker):
        with pytest.raises(ZeroDivisionError), running(worker):
            job = await submit(producer, frames=1500)
            await reach(producer, job, lambda state: state.draws > 0)
            worker._ownership.publisher._append = die
            dying.set()
            await until(lambda: not worker._ownership._keeper.is_alive())
        assert not worker._ownership.leases.held() and not worker._ownership._keeper.is_alive()
        with running(talker(broker), acoustic(broker)):
            await completed(producer, job)


async def test_a_song_whose_end_was_not_written_is_freed_at_once(producer, broker):
    """Its talker is done with it, and only its publisher has yet to say so, when that dies."""
    worker = talker(broker)

    def die(due, logged):
        deadline = time.monotonic() + PATIENCE_S
        while worker._talking or not worker._runner.steps:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        raise ZeroDivisionError("in the publisher")

    worker._ownership.publisher._append = die
    with pytest.raises(ZeroDivisionError), running(worker):
        job = await submit(producer, frames=40)
        await until(lambda: not worker._ownership._keeper.is_alive())
    assert not worker._ownership.leases.held()
    with running(talker(broker), acoustic(broker)):
        assert await completed(producer, job) == await alone(producer, broker, frames=40)


async def test_a_log_that_stays_behind_its_head_is_not_tried_for_ever(producer, broker):
    job = await submit(producer, frames=300)
    with running(talker(broker)):
        await reach(producer, job, lambda state: state.terminal)
    broker.client().hset(keys.head(job), "chunks", 7)
    with sweeping(broker), running(acoustic(broker)):
        state = await reach(producer, job, lambda state: state.status.final)
    assert state.error.code == "worker_lost" and "not what its writer left" in state.error.message


async def test_a_carry_that_cannot_be_read_harms_its_own_job_only(producer, broker):
    broken, stopping = await submit(producer, frames=430), threading.Event()
    slow = InstantAcoustic(after_window=lambda index: index == 2 and stopping.wait(PATIENCE_S))
    with running(talker(broker), acoustic(broker, model=slow)) as stop:
        await reach(producer, broken, lambda state: state.terminal and state.chunks == 2)
        stop.set()
        stopping.set()
    broker.client().set(keys.carry(broken), b"\x81\xa1x\x01")
    with sweeping(broker), running(talker(broker), acoustic(broker)):
        await completed(producer, await submit(producer, seed=2, frames=250))
        state = await reach(producer, broken, lambda state: state.status.final)
    assert state.error.code == "worker_lost" and "KeyError" in state.error.message


async def test_a_final_event_that_is_lost_leaves_the_job_live_with_all_it_held(producer, broker):
    from workers.publish import retire

    client = broker.client()
    job = (await producer.submit(request(), reserve_bytes=1000, body=1)).id
    held = client.hget(keys.RESERVED, job)
    live_again = not retire(client, log.Scripts(client), job, model="instant", owner="anonymous", ttl_ms=1000)
    assert live_again and client.hget(keys.RESERVED, job) == held and client.hget(keys.RESERVED, "") == b"1000"
    assert client.zscore(keys.LIVE, job) and not client.exists(keys.EXPIRING)


async def test_idle_owners_are_forgotten_and_come_back(producer, broker):
    with sweeping(broker), running(talker(broker), acoustic(broker)):
        for owner in ("a", "b"):
            await completed(producer, await submit(producer, owner=owner, frames=50))
        await until(lambda: not broker.client().scard(keys.owners("instant")))
        await completed(producer, await submit(producer, owner="a", frames=50))
