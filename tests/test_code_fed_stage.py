"""A stage that takes codes and keeps no state: windows that ramp up, decoded again after a takeover."""

from __future__ import annotations

import hashlib
import threading

import pytest

from broker_schemas import keys
from broker_schemas.job import Status, fold
from tests.stand_ins import RAMP, SPEECH, InstantAcoustic, InstantRunner, acoustic, running, talker
from tests.test_pipeline import listen, sha256, submit
from tests.waiting import PATIENCE_S, reach, until
from workers.talker.rows import DoesNotFit

LENGTHS = [1, 2, 3, 4, 7, 8, 31, 32, 56, 57, 100]


def model(**changes) -> InstantAcoustic:
    return InstantAcoustic(width=0, keeps_state=False, own=None, channels=1, **changes)


def workers(broker, **changes):
    return talker(broker, family=SPEECH), acoustic(broker, family=SPEECH, model=model(**changes))


@pytest.mark.parametrize("frames", LENGTHS)
async def test_both_chunk_modes_give_the_same_bytes_in_the_plans_windows(producer, broker, frames):
    sums = set()
    for async_chunk in (True, False):
        with running(*workers(broker)):
            job = await submit(producer, frames=frames, params={"async_chunk": async_chunk})
            events, chunks = await listen(producer, job)
        state = fold(events)
        assert (state.status, state.frames, state.draws) == (Status.COMPLETED, frames, frames)
        assert len(chunks) == RAMP.count(frames)
        sums.add(sha256(chunks))
    assert len(sums) == 1


async def test_no_conditioning_is_sent_and_no_state_is_stored(producer, broker):
    sizes = []

    def look(index: int) -> None:
        sizes.append(len(broker.client().get(keys.carry(job)) or b""))

    with running(talker(broker, family=SPEECH)):
        job = await submit(producer, frames=200)
        with running(acoustic(broker, family=SPEECH, model=model(after_window=look))):
            await listen(producer, job)
    assert not await producer.client.exists(keys.spans(job))
    assert len(sizes) == RAMP.count(200)
    assert max(sizes) < 100


@pytest.mark.parametrize("falls_after", [0, 3, 6])
async def test_a_successor_decodes_what_is_out_again_and_its_bytes_go_on(producer, broker, falls_after):
    """The state of the sound is a function of the codes and the cuts: hash chains over all windows so far."""
    with running(*workers(broker)):
        job = await submit(producer, frames=130)
        _, undisturbed = await listen(producer, job)
    fallen, decoded = [], []

    def fall(index: int) -> None:
        decoded.append(index)
        if index == falls_after + 1 and not fallen:
            fallen.append(index)
            raise RuntimeError("no more memory")

    with running(*workers(broker, after_window=fall)):
        job = await submit(producer, frames=130)
        events, chunks = await listen(producer, job)
    assert fold(events).status is Status.COMPLETED
    assert decoded[falls_after + 2 :][: falls_after + 2] == list(range(falls_after + 2))
    assert sha256(chunks) == sha256(undisturbed)
    assert [hashlib.sha256(chunk.pcm).hexdigest() for chunk in chunks] == [
        hashlib.sha256(chunk.pcm).hexdigest() for chunk in undisturbed
    ]


async def test_windows_of_several_jobs_are_decoded_at_once_and_a_broken_one_breaks_no_other(producer, broker):
    seeds = range(1, 7)
    with running(*workers(broker)):
        jobs = [await submit(producer, frames=90, seed=seed) for seed in seeds]
        alone = [sha256((await listen(producer, job))[1]) for job in jobs]

    def break_one(index: int) -> None:
        assert all_are_there.wait(PATIENCE_S)
        if index == 3 and model_.batches[-1] > 1 and not broken:
            broken.append(index)
            raise RuntimeError("this batch was too much")

    broken: list[int] = []
    all_are_there = threading.Event()
    model_ = model(batch=4, after_window=break_one)
    with running(talker(broker, family=SPEECH)):
        jobs = [await submit(producer, frames=90, seed=seed) for seed in seeds]
        for job in jobs:
            await reach(producer, job, lambda state: state.terminal)
        worker = acoustic(broker, family=SPEECH, model=model_)
        with running(worker):
            await until(lambda: len(worker._sounding) + len(worker._taken) == len(jobs))
            all_are_there.set()
            heard = [await listen(producer, job) for job in jobs]
    assert [fold(events).status for events, _ in heard] == [Status.COMPLETED] * len(seeds)
    assert [sha256(chunks) for _, chunks in heard] == alone
    assert broken and max(model_.batches) == 4
    assert all(fold(events).attempts["acoustic"] == 1 for events, _ in heard)  # it was no strike against anybody


TOLD = {"passages": [{"start": 0, "end": 1, "frames": 60}, {"start": 1, "end": 2, "frames": 60}], "ends_at": [20, 30]}


class SecondPassageBreaks(InstantRunner):
    """Refuses the second passage that it is given, once."""

    error: Exception | None = None

    def admit(self, history, prompts):
        if history.context is not None and self.error is not None:
            error, self.error = self.error, None
            raise error
        super().admit(history, prompts)


async def test_passages_that_do_not_fit_end_the_job_and_ones_that_break_are_taken_up_again(producer, broker):
    runner = SecondPassageBreaks(width=0)
    with running(talker(broker, family=SPEECH, runner=runner), workers(broker)[1]):
        job = await submit(producer, params=TOLD)
        _, undisturbed = await listen(producer, job)
        runner.error = RuntimeError("broke")
        job = await submit(producer, params=TOLD)
        events, chunks = await listen(producer, job)
        assert sha256(chunks) == sha256(undisturbed) and len(chunks) == RAMP.count(50)
        assert [event.payload.why for event in events if event.type == "rows.freed"][:1] == ["broke"]
        runner.error = DoesNotFit("too long")
        job = await submit(producer, params=TOLD)
        state = await reach(producer, job, lambda state: state.status.final and state.rows_freed)
        assert (state.status, state.error.code) == (Status.FAILED, "does_not_fit")
        assert [freed.rows for freed in state.rows_freed] == [2]
        job = await submit(producer, params=TOLD)
        _, chunks = await listen(producer, job)
    assert sha256(chunks) == sha256(undisturbed)
    assert runner.free_jobs == runner.max_jobs


class GivesUp(InstantRunner):
    """Has no room for the frames of one seed after the first twenty."""

    def step(self):
        stepped = super().step()
        for history in stepped:
            if history.request.seed == 13 and history.frames == 20:
                history.refused = "no more room"
        return stepped


async def test_a_job_that_the_runner_gives_up_fails_alone(producer, broker):
    with running(*workers(broker)):
        _, alone = await listen(producer, await submit(producer, frames=60))
    runner = GivesUp(width=0)
    with running(talker(broker, family=SPEECH, runner=runner), workers(broker)[1]):
        job, beside = [await submit(producer, frames=60, seed=seed) for seed in (13, 1)]
        _, chunks = await listen(producer, beside)
        state = await reach(producer, job, lambda state: state.status.final and state.rows_freed)
        _, after = await listen(producer, await submit(producer, frames=60))
    assert (state.status, state.error.code, state.error.retryable) == (Status.FAILED, "does_not_fit", False)
    assert state.error.message == "no more room" and [freed.rows for freed in state.rows_freed] == [2]
    assert sha256(chunks) == sha256(after) == sha256(alone)
    assert runner.idle and runner.free_jobs == runner.max_jobs


async def test_a_long_text_without_a_frame_fails_and_says_so(producer, broker):
    with running(*workers(broker)):
        job = await submit(producer, params=TOLD | {"ends_at": [0, 0]})
        state = await reach(producer, job, lambda state: state.status.final)
    assert (state.status, state.error.code) == (Status.FAILED, "no_frames")
