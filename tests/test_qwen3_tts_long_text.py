"""Long texts: passage after passage one sha256, in each engine, whatever becomes of the job in between."""

from __future__ import annotations

import asyncio
import hashlib
import random

import numpy as np
import pytest

from broker_schemas.job import JobState, Status, fold, logged_codes
from tests import test_qwen3_tts_pipeline, test_same_bytes
from tests.crew import holding, talker_worker
from tests.stand_ins import running
from tests.test_cancel import freed
from tests.test_qwen3_tts_pipeline import JOBS, SHORT, SPEECH, cancel, submit
from tests.test_same_bytes import sing, stream
from tests.waiting import reach, until
from workers.models.qwen3_tts import passages
from workers.talker.passages import passage_seed
from workers.talker.worker import Runner, TalkerWorker

pytestmark = [pytest.mark.redis, pytest.mark.timeout(600)]

TEXT = (
    "The river keeps its own slow time. Nobody on the bank asks it to hurry. 河流有自己的时间。 It never writes back."
)
LONG = SPEECH | {"input": TEXT, "seed": 14, "max_new_tokens": 160}  # the model ends each of its passages
ENDS = [20, 48, 113]

client, settings, talking, sounding, talker, acoustic = (
    test_same_bytes.client,
    test_qwen3_tts_pipeline.settings,
    test_qwen3_tts_pipeline.talking,
    test_qwen3_tts_pipeline.sounding,
    test_qwen3_tts_pipeline.talker,
    test_qwen3_tts_pipeline.acoustic,
)


@pytest.fixture(autouse=True)
def short_passages(monkeypatch):
    """Three of them in the text."""
    for name, weight in {"LENGTH": 40, "SPARE": 10, "LEAST": 5}.items():
        monkeypatch.setattr(passages, name, weight)


@pytest.fixture(scope="module")
def codes() -> dict[str, np.ndarray]:
    """Of the long text, by the engine that drew them."""
    return {}


async def newest(client) -> list:
    """The events of the job that was submitted last."""
    job = (await client.get("/v1/jobs")).json()["data"][0]["id"]
    return await client.producer.jobs.events(job)


async def test_one_text_one_sha256(client, talker, acoustic, codes, settings):
    """Alone and beside others, polled and streamed, by chunks and as a whole; and each engine draws the same."""
    others = [LONG | {"seed": 12}, SPEECH, SHORT]
    with running(talker, acoustic):
        alone = await sing(client, LONG)
        log = await newest(client)
        state = fold(log)
        assert [end.frame for end in state.ends] == ENDS and state.reason == "stop"
        codes[settings.talker.model_runner] = logged_codes(log)
        apart = [await sing(client, other) for other in others]
        together = await asyncio.gather(
            *(sing(client, other) for other in others),
            sing(client, LONG),
            stream(client, LONG),
            sing(client, LONG | {"async_chunk": False}),
        )
    assert together == [*apart, alone, alone, alone]
    assert len({codes.tobytes() for codes in codes.values()}) == 1


async def test_passages_are_the_text_as_it_was_cut(client, talker, acoustic):
    """The first is drawn as if it were all that was said; the rest is no repetition of it."""
    with running(talker, acoustic):
        await sing(client, LONG)
        long = logged_codes(await newest(client))
        await sing(client, LONG | {"input": "The river keeps its own slow time.", "seed": passage_seed(14, 0)})
        first = logged_codes(await newest(client))
    assert np.array_equal(long[: ENDS[0]], first)
    assert not np.array_equal(long[ENDS[0] : ENDS[0] + 8], first[:8])


def frames_of(worker: TalkerWorker) -> int:
    """Of the one job that it has."""
    return max((talking.reading.history.frames for talking in list(worker._talking.values())), default=0)


async def speak_until(worker: TalkerWorker, runner: Runner, frames: int) -> None:
    """Work on the one job, and hand it over a step after it has so many frames."""
    with holding(runner, lambda: frames_of(worker) >= frames) as (held, let_go), running(worker) as stop:
        await until(held.is_set)
        stop.set()
        let_go.set()


@pytest.mark.parametrize("async_chunk", [True, False])
async def test_a_takeover_in_any_passage(client, real_broker, settings, talking, acoustic, async_chunk):
    """At random frames; a frame before a passage's end, at it, and where the next one has begun."""
    moments = {19, 20, *random.Random(async_chunk).sample(range(21, 112), 2), 47}
    with running(acoustic):
        with running(talker_worker(real_broker, settings, talking)):
            alone = await sing(client, LONG)
            expected = fold(await newest(client))
        job = await submit(client, LONG | {"async_chunk": async_chunk})
        for frames in sorted(moments):
            await speak_until(talker_worker(real_broker, settings, talking), talking.runner, frames)
        with running(talker_worker(real_broker, settings, talking)):
            state, sha = await finished(client, job)
    assert (state.status, sha, state.attempts["talker"]) == (Status.COMPLETED, alone, len(moments) + 1)
    assert state.ends == expected.ends
    assert talking.runner.idle and talking.runner.free_jobs == JOBS


async def finished(client, job: str) -> tuple[JobState, str]:
    """The final state, and the sha256 of the sound."""
    state = await reach(client.producer, job, lambda state: state.status.final)
    chunks = await client.producer.jobs.chunks(job)
    return state, hashlib.sha256(b"".join(chunk.pcm for chunk in chunks)).hexdigest()


async def test_cancelled_in_its_second_passage(client, talking, talker, acoustic):
    """Its row goes at the next step; the next long text, in that row, is unharmed."""
    runner = talking.runner
    with running(talker, acoustic):
        expected = await sing(client, LONG)
        with holding(runner, lambda: frames_of(talker) == ENDS[0] + 5) as (held, let_go):
            job = await submit(client, LONG)
            await until(held.is_set)
            stood = runner.steps
            await cancel(client, job)
            beside = asyncio.create_task(sing(client, LONG))
            await until(lambda: job in talker._ownership.signals._cancelled)
            let_go.set()
            [event] = await freed(client.producer, job)
        assert (event.payload.rows, event.payload.why, event.payload.step) == (1, "job.cancelled", stood + 1)
        assert await beside == expected
        state = await client.producer.jobs.state(job)
    assert (state.status, state.terminal) == (Status.CANCELLED, False)
    assert runner.idle and runner.free_jobs == JOBS
