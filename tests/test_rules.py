"""Rules of the design that no other file is about: disagreement, gaps, profiles, pressure."""

from __future__ import annotations

import asyncio
import threading

from broker_schemas import keys
from broker_schemas.job import Status
from tests.stand_ins import ENDLESS, InstantAcoustic, InstantRunner, acoustic, each_append, running, talker
from tests.test_pipeline import listen, sha256, submit
from tests.waiting import PATIENCE_S, reach, until


async def test_work_done_again_with_other_bytes_fails_the_job(producer, broker):
    """A second worker decodes the same window to something else: it never plays."""
    job = await submit(producer, frames=430)
    with running(talker(broker)):
        await reach(producer, job, lambda state: state.terminal)
    worker = acoustic(broker)
    publisher, copies = worker._ownership.publisher, []

    def write_twice(entry, write):
        write()
        if entry.payload.type == "audio.chunk" and not copies:
            copies.append(entry)
            other = type(entry.payload)(index=0, samples=1, start_sample=0, sha256="other")
            publisher._write([type(entry)(entry.lease, other, entry.owner, entry.ttl_ms, {"pcm": b"abcd"})])

    each_append(publisher, write_twice)
    with running(worker):
        _, chunks = await listen(producer, job)
    state = await producer.jobs.state(job)
    assert (state.status, state.error.code) == (Status.FAILED, "nondeterministic")
    assert len(chunks) == 1 and "other bytes" in state.error.message and not state.error.retryable


async def test_missing_conditioning_fails_the_job(producer, broker):
    """It never plays with a seam."""
    client = broker.client()
    job = await submit(producer, frames=430)
    with running(talker(broker)):
        await reach(producer, job, lambda state: state.terminal)
    second = client.xrange(keys.spans(job))[1][0]
    client.xdel(keys.spans(job), second)
    with running(acoustic(broker)):
        _, chunks = await listen(producer, job)
    state = await producer.jobs.state(job)
    assert state.error.code == "broken_log" and "frame 200" in state.error.message
    assert len(chunks) == 1


async def test_a_worker_of_another_profile_leaves_the_job_alone(producer, broker):
    job = await submit(producer, frames=ENDLESS)
    with running(talker(broker, profile="one", runner=InstantRunner(step_s=0.001))):
        await reach(producer, job, lambda state: state.draws > 0)
    draws = (await producer.jobs.state(job)).draws
    with running(talker(broker, profile="two")):
        await asyncio.sleep(1.5)
        assert (await producer.jobs.state(job)).draws == draws
        other = await submit(producer, frames=50)
        await reach(producer, other, lambda state: state.terminal)
    with running(talker(broker, profile="one", runner=InstantRunner(step_s=0.001))):
        await reach(producer, job, lambda state: state.draws > draws)
    await producer.cancel(job, by_whom="test")


async def test_the_talker_admits_no_more_while_the_acoustic_stage_is_behind(producer, broker):
    runner = InstantRunner()
    with running(talker(broker, runner=runner, ready_limit=2)):
        jobs = [await submit(producer, seed=seed, frames=50) for seed in range(5)]

        async def talked() -> int:
            return sum([(await producer.jobs.state(job)).terminal for job in jobs])

        async def two_have_talked() -> bool:
            return await talked() == 2

        await until(two_have_talked)
        await asyncio.sleep(1.5)
        assert await talked() == 2 and runner.idle
        with running(acoustic(broker)):
            for job in jobs:
                await reach(producer, job, lambda state: state.status is Status.COMPLETED)


async def test_a_song_whose_span_comes_out_while_the_talker_counts_is_counted(broker, monkeypatch):
    worker = talker(broker, ready_limit=1)
    worker._unready.add("job")
    client = worker._ownership.client
    xlen = client.xlen

    def comes_out(stream: str) -> int:
        length = xlen(stream)
        worker._note_ready("job", True)
        return length

    monkeypatch.setattr(client, "xlen", comes_out)
    assert worker._admissible() == 0


async def test_pairs_live_and_die_together(producer, broker):
    with running(talker(broker, runner=InstantRunner(step_s=0.001)), acoustic(broker)):
        job = await submit(producer, frames=60)
        await listen(producer, job)
        await reach(producer, job, lambda state: state.rows_freed)
        state = await producer.jobs.state(job)
    assert [freed.rows for freed in state.rows_freed] == [2]
    admitted = next(event for event in await producer.jobs.events(job) if event.type == "job.admitted")
    assert admitted.payload.rows == 2


async def test_windows_are_decoded_one_at_a_time_for_who_runs_dry_first(producer, broker):
    order: list[str] = []

    class Watched(InstantAcoustic):
        def decode(self, window):
            if not order:
                all_are_there.wait(PATIENCE_S)
            order.append(f"{window.seed}:{window.index}")
            return super().decode(window)

    all_are_there = threading.Event()

    jobs = [await submit(producer, seed=seed, frames=430) for seed in range(3)]
    with running(talker(broker)):
        for job in jobs:
            await reach(producer, job, lambda state: state.terminal)
    worker = acoustic(broker, model=Watched())
    with running(worker):
        await until(lambda: len(worker._sounding) + len(worker._taken) == 3)
        all_are_there.set()
        for job in jobs:
            await listen(producer, job)
    firsts = [order.index(f"{seed}:0") for seed in range(3)]
    assert max(firsts) <= 3  # everybody's first window before anybody's third


async def test_the_promise_of_the_stand_in(producer, broker):
    """The instant model tells songs apart: with another seed, other bytes."""
    with running(talker(broker), acoustic(broker)):
        heard = [sha256((await listen(producer, await submit(producer, seed=seed)))[1]) for seed in (1, 1, 2)]
    assert heard[0] == heard[1] != heard[2]
