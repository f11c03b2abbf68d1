"""Rules 2, 3 and 5 with the real Qwen3-TTS architecture at its tiny size, each engine as its talker."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
import torch

from broker_schemas import keys
from broker_schemas.job import Status
from tests import test_same_bytes
from tests.crew import acoustic_worker, holding, talker_worker
from tests.stand_ins import QUICK, running
from tests.test_cancel import freed
from tests.test_same_bytes import serving, sing, speak, stream
from tests.tiny_checkpoint import tiny_checkpoint
from tests.utterances import MODEL, POSITIONS, TEXT, WAYS
from tests.waiting import reach, until
from workers import run
from workers.models.family import Dropped
from workers.settings import Settings, load

pytestmark = [pytest.mark.redis, pytest.mark.timeout(600)]

JOBS = 8
SPEECH = {"model": MODEL, "input": TEXT, "voice": "ryan", "seed": 2, "max_new_tokens": 40}  # the model does not end it
SHORT = SPEECH | {"max_new_tokens": 12}
OTHERS = [
    SPEECH | {"seed": 1},  # which it does end
    *(
        SPEECH | {"input": TEXT + " And on." * n, "seed": n, "max_new_tokens": 8 + 3 * n, "first_chunk_frames": 1 + n}
        | WAYS[n % len(WAYS)]
        for n in range(6)
    ),
]  # fmt: skip

client = test_same_bytes.client


@pytest.fixture(scope="module", params=["torch", pytest.param("v1", marks=pytest.mark.vllm)])
def settings(request) -> Settings:
    torch.set_num_threads(1)
    talker = {"model_runner": request.param, "max_jobs": JOBS, "max_model_len": POSITIONS}
    settings = load(MODEL, tiny_checkpoint(MODEL), overrides={"talker": talker})
    return replace(settings, leases=replace(QUICK, ttl_s=5.0))


@pytest.fixture(scope="module")
def talking(settings):
    """A talker with its weights; an engine takes long to start, and a process has one at a time."""
    talking = run.load_talker(settings)
    yield talking
    if settings.talker.model_runner != "torch":
        talking.runner.close()


@pytest.fixture(scope="module")
def sounding(settings):
    return run.load_acoustic(settings)


@pytest.fixture
def talker(real_broker, settings, talking):
    return talker_worker(real_broker, settings, talking)


@pytest.fixture
def acoustic(real_broker, settings, sounding):
    return acoustic_worker(real_broker, settings, sounding)


async def submit(client, speech: dict) -> str:
    return (await client.post("/v1/jobs", json=speech)).json()["id"]


async def cancel(client, job: str) -> None:
    assert (await client.delete(f"/v1/jobs/{job}")).json()["status"] == "cancelled"


async def cuts(client, speech: dict) -> tuple[str, list[float]]:
    """Of a job: the sha256 of its PCM, and the frames of its chunks."""
    job = await submit(client, speech)
    await reach(client.producer, job, lambda state: state.status is Status.COMPLETED)
    chunks = await client.producer.jobs.chunks(job)
    sound = b"".join(chunk.pcm for chunk in chunks)
    return hashlib.sha256(sound).hexdigest(), [len(chunk.pcm) / (2 * 1920) for chunk in chunks]


async def test_one_utterance_one_sha256(client, talker, acoustic):
    """Alone and eight at once, polled, streamed and spoken, by chunks and as a whole."""
    with running(talker, acoustic):
        alone, frames = await cuts(client, SPEECH)
        assert frames == [1, 2, 4, 8, 16, 9]
        others = [await sing(client, other) for other in OTHERS]
        assert len({alone, *others}) == 1 + len(OTHERS)
        assert await sing(client, SPEECH | {"seed": 42}) != alone
        together = await asyncio.gather(*(sing(client, other) for other in OTHERS), sing(client, SPEECH))
        assert together == [*others, alone]
        assert (
            await asyncio.gather(
                stream(client, SPEECH),
                speak(client, SPEECH),
                speak(client, SPEECH, stream_format="audio"),
                sing(client, SPEECH | {"async_chunk": False}),
                *(sing(client, other | {"async_chunk": False}) for other in OTHERS[:4]),
            )
            == [alone] * 4 + others[:4]
        )


async def test_the_first_chunk_s_frames_decide_the_cuts_and_nothing_else_does(client, talker, acoustic):
    asked = [SPEECH | {"max_new_tokens": 30, "first_chunk_frames": frames} for frames in (2, 3, 25)]
    with running(talker, acoustic):
        alone = [await cuts(client, speech) for speech in asked]
        assert [frames for _, frames in alone] == [[2, 4, 8, 16], [3, 6, 12, 9], [25, 5]]
        together = [*asked, *(speech | {"async_chunk": False} for speech in asked)]
        assert await asyncio.gather(*(cuts(client, speech) for speech in together)) == alone * 2


async def test_two_workers_of_each_role(client, real_broker, settings, talker, acoustic):
    if settings.talker.model_runner != "torch":
        pytest.skip("a process has one engine at a time")
    with running(talker, acoustic):
        expected = await asyncio.gather(*(sing(client, speech) for speech in (SPEECH, *OTHERS)))
    few = replace(settings, acoustic=replace(settings.acoustic, max_num_seqs=2))
    twice = [SPEECH, *OTHERS] * 2  # more than one talker has rows for
    with serving(real_broker, few, talkers=2, acoustics=2):
        await until(lambda: real_broker.client().hlen(keys.WORKERS) == 4)
        assert await asyncio.gather(*(sing(client, speech) for speech in twice)) == expected * 2
    admitted = [
        event
        for job in real_broker.client().zrange(keys.jobs("anonymous"), 0, -1)
        for event in await client.producer.jobs.events(job.decode())
        if event.type == "job.admitted"
    ]
    for role in keys.ROLES:
        assert len({event.by for event in admitted if event.data["role"] == role}) == 3  # all of them took part


async def test_cancelled_while_queued(client, talker, acoustic):
    job = await submit(client, SPEECH)
    await cancel(client, job)
    with running(talker, acoustic):
        await sing(client, SHORT)
        state = await client.producer.jobs.state(job)
    assert (state.status, state.admitted_at, state.rows_freed) == (Status.CANCELLED, {}, ())


@pytest.mark.parametrize(
    ("first_chunk", "stage"),
    [
        pytest.param(25, lambda state: not state.chunks, id="before the first chunk"),
        pytest.param(1, lambda state: state.chunks >= 2, id="in mid-speech"),
    ],
)
async def test_cancelled_while_it_has_its_row(client, talking, talker, acoustic, first_chunk, stage):
    """Its row goes at the next step; the utterance beside it and the next one, in that row, are unharmed."""
    runner = talking.runner
    with running(talker, acoustic):
        expected = await sing(client, SHORT)
        began = runner.steps
        with holding(runner, lambda: runner.steps == began + 20) as (held, let_go):
            job = await submit(client, SPEECH | {"max_new_tokens": 200, "first_chunk_frames": first_chunk})
            await until(held.is_set)
            await reach(client.producer, job, stage)
            await cancel(client, job)
            beside = asyncio.create_task(sing(client, SHORT))
            await until(lambda: job in talker._ownership.signals._cancelled)
            let_go.set()
            [event] = await freed(client.producer, job)
        assert (event.payload.rows, event.payload.why) == (1, "job.cancelled")
        assert event.payload.step == began + 21
        assert [await beside, await sing(client, SHORT)] == [expected] * 2
        state = await client.producer.jobs.state(job)
    assert (state.status, state.terminal) == (Status.CANCELLED, False)
    assert len(await client.producer.jobs.chunks(job)) == state.chunks
    assert runner.idle and runner.free_jobs == JOBS


@contextmanager
def endless_second_window(model):
    """The first second window ends only by being dropped: (it has begun)."""
    begun = threading.Event()
    windows = model.windows

    def until_dropped(asked):
        if begun.is_set() or asked[0].index != 1:
            return windows(asked)
        begun.set()
        with suppress(Dropped):
            while True:
                asked[0].check()
                time.sleep(0.01)
        return [None]

    model.windows = until_dropped
    try:
        yield begun
    finally:
        del model.windows


async def test_cancelled_after_the_last_span(client, talker, acoustic, sounding):
    """The talker is done with it; the window that is being decoded is left."""
    with running(talker, acoustic):
        expected = await sing(client, SHORT)
        with endless_second_window(sounding.model) as begun:
            job = await submit(client, SPEECH)
            await reach(client.producer, job, lambda state: state.terminal and begun.is_set())
            await cancel(client, job)
            assert await sing(client, SHORT) == expected
        state = await client.producer.jobs.state(job)
    assert (state.status, state.chunks) == (Status.CANCELLED, 1)
    assert len(await client.producer.jobs.chunks(job)) == 1
