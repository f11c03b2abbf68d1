"""Cancelling, at every stage of a job (rule 5)."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from broker_schemas import keys
from broker_schemas.job import Status
from producer.follow import Chunk, Unknown
from tests.stand_ins import ENDLESS, QUICK, InstantAcoustic, InstantRunner, acoustic, running, sweeper, talker
from tests.test_pipeline import listen, sha256, submit
from tests.waiting import PATIENCE_S, reach, until


async def freed(producer, job: str) -> list:
    """The rows.freed events, which may come after the final one."""
    await reach(producer, job, lambda state: state.rows_freed)
    return [event for event in await producer.jobs.events(job) if event.type == "rows.freed"]


class EndlessSecondWindow(InstantAcoustic):
    """Its second windows end only by being dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.in_second = threading.Event()

    def decode(self, window):
        while window.index == 1:
            self.in_second.set()
            window.check()
            time.sleep(0.01)
        return super().decode(window)


async def test_queued(producer, broker):
    job = await submit(producer)
    assert (await producer.cancel(job, by_whom="me")).status is Status.CANCELLED
    with running(talker(broker), acoustic(broker)):
        other = await submit(producer, frames=50)
        await listen(producer, other)
        state = await producer.jobs.state(job)
    assert (state.status, state.admitted_at, state.rows_freed) == (Status.CANCELLED, {}, ())


@pytest.mark.parametrize(
    ("stage", "held_at"),
    [
        pytest.param(lambda state: state.status is Status.TALKING, 150, id="before the first window"),
        pytest.param(lambda state: state.chunks >= 2, 5000, id="in mid-song"),
    ],
)
async def test_while_the_talker_has_rows(producer, broker, stage, held_at):
    cancelled = threading.Event()
    runner = InstantRunner(step_s=0.002)
    runner.before_step = lambda: runner.steps == held_at and cancelled.wait(PATIENCE_S)
    with running(talker(broker, runner=runner), acoustic(broker)):
        job = await submit(producer, frames=ENDLESS)
        await reach(producer, job, stage)
        state = await producer.cancel(job, by_whom="me")
        cancelled.set()
        events = await freed(producer, job)
        chunks = await producer.jobs.chunks(job)
        await asyncio.sleep(0.3)
        assert await producer.jobs.chunks(job) == chunks  # nothing sounds after the tombstone
        assert runner.idle
    assert state.status is Status.CANCELLED
    assert [(event.payload.rows, event.payload.why) for event in events] == [(2, "job.cancelled")]


async def test_in_the_terminal_span(producer, broker):
    """The talker is done; the acoustic worker stops between solver steps."""
    sounding = EndlessSecondWindow()
    with running(talker(broker), acoustic(broker, model=sounding)):
        job = await submit(producer, frames=430)
        await reach(producer, job, lambda state: state.terminal and sounding.in_second.is_set())
        await reach(producer, job, lambda state: state.chunks == 1)
        state = await producer.cancel(job, by_whom="me")
        other = await submit(producer, frames=50)  # begins once the window that was being decoded was left
        await reach(producer, other, lambda state: state.status is Status.COMPLETED)
    assert state.status is Status.CANCELLED
    assert len(await producer.jobs.chunks(job)) == state.chunks == 1


async def test_after_completion_and_twice(producer, broker):
    with running(talker(broker), acoustic(broker)):
        job = await submit(producer, frames=50)
        await listen(producer, job)
        assert (await producer.cancel(job, by_whom="me")).status is Status.COMPLETED
        other = await submit(producer, frames=ENDLESS)
        assert (await producer.cancel(other, by_whom="me")).cancelled_by == "me"
        assert (await producer.cancel(other, by_whom="you")).cancelled_by == "me"


async def test_one_of_four_running_songs(producer, broker):
    with running(talker(broker), acoustic(broker)):
        alone = [sha256((await listen(producer, await submit(producer, seed=n, frames=900)))[1]) for n in (0, 1, 3)]
    with running(talker(broker, runner=InstantRunner(step_s=0.001)), acoustic(broker)):
        jobs = [await submit(producer, seed=n, frames=ENDLESS if n == 2 else 900) for n in range(4)]
        await reach(producer, jobs[2], lambda state: state.chunks >= 1)
        await producer.cancel(jobs[2], by_whom="me")
        heard = [sha256((await listen(producer, job))[1]) for job in jobs]
        state = await producer.jobs.state(jobs[2])
    assert [heard[n] for n in (0, 1, 3)] == alone
    assert state.status is Status.CANCELLED and not state.terminal


def tombstones_only(worker):
    """A talker that never learns at a renewal that a job is over."""
    worker._ownership.leases.renew = lambda: None
    return worker


async def test_rows_are_freed_at_the_next_step_after_the_tombstone(producer, broker):
    """The step at which a tombstone is known is the last one that its rows take part in."""
    runner = InstantRunner(step_s=0.01)
    worker = tombstones_only(talker(broker, runner=runner, settings=replace(QUICK, ttl_s=600)))
    known: dict[str, int] = {}
    note = worker._ownership.signals._note

    def noted(stream, fields):
        note(stream, fields)
        known[fields[b"job"].decode()] = runner.steps

    worker._ownership.signals._note = noted
    late = []
    with running(worker, acoustic(broker)):
        for _ in range(10):
            job = await submit(producer, frames=ENDLESS)
            await reach(producer, job, lambda state: state.status is Status.TALKING)
            known.clear()
            await producer.cancel(job, by_whom="me")
            (event,) = await freed(producer, job)
            late.append(event.payload.step - known[job])
    assert max(late) <= 1


async def test_a_missed_tombstone_is_caught_at_the_next_renewal(producer, broker):
    worker = talker(broker, runner=InstantRunner(step_s=0.002))
    worker._ownership.signals._note = lambda *_: None
    with running(worker):
        job = await submit(producer, frames=ENDLESS)
        await reach(producer, job, lambda state: state.status is Status.TALKING)
        await producer.cancel(job, by_whom="me")
        (event,) = await freed(producer, job)
    assert event.payload.why == "job.cancelled"


async def test_nothing_is_left_after_the_ttl(producer, broker):
    client = broker.client()
    producer.limits = type(producer.limits)(ttl_s=0.6)
    sweep = sweeper(broker).sweep
    with running(talker(broker, runner=InstantRunner(step_s=0.001)), acoustic(broker)):
        cancelled = await submit(producer, frames=ENDLESS)
        await reach(producer, cancelled, lambda state: state.chunks >= 1)
        await producer.cancel(cancelled, by_whom="me")
        done = await submit(producer, frames=250)
        await until(lambda: not client.exists(keys.LIVE))
        await until(lambda: not client.exists(keys.log(cancelled), keys.log(done)))
        await until(lambda: sweep() or not client.exists(keys.EXPIRING))
    left = [key.decode() for key in client.scan_iter()]
    assert not [key for key in left if cancelled in key or done in key]
    assert not client.exists(keys.LIVE, keys.RESERVED, keys.EXPIRING, keys.jobs("anonymous"))
    for job in (cancelled, done):
        with pytest.raises(Unknown):
            await producer.jobs.state(job)


async def test_followers_of_a_cancelled_job_end(producer, broker):
    with running(talker(broker, runner=InstantRunner(step_s=0.002)), acoustic(broker)):
        job = await submit(producer, frames=ENDLESS)
        heard = []
        async for item in producer.jobs.follow(job):
            if isinstance(item, Chunk):
                heard.append(item)
                if len(heard) == 1:
                    await producer.cancel(job, by_whom="me")
    assert heard == await producer.jobs.chunks(job)
