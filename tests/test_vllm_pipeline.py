"""The whole road with vLLM as the talker's engine: rules 2, 3, 5 and 6 hold as they do with the torch runner."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

import pytest
import torch

from broker_schemas import keys
from broker_schemas.job import JobState, Status
from tests import test_same_bytes
from tests.crew import acoustic_worker, holding, talker_worker
from tests.stand_ins import QUICK, running
from tests.test_cancel import freed
from tests.test_same_bytes import LYRICS, sing, speak, stream
from tests.tiny_checkpoint import tiny_checkpoint
from tests.waiting import reach, until
from workers import run
from workers.run import LoadedTalker
from workers.settings import Settings, TalkerSettings, load

pytest.importorskip("vllm", reason="vLLM is not installed")
pytestmark = [pytest.mark.vllm, pytest.mark.redis, pytest.mark.timeout(600)]

TALKER = {"model_runner": "v1", "max_jobs": 8, "max_model_len": 512, "prefill_chunk": 32}
SONG = test_same_bytes.SONG | {"max_new_tokens": 230}
SHORT = SONG | {"max_new_tokens": 60}

client = test_same_bytes.client


def with_talker(**changes) -> Settings:
    overrides = {"talker": TALKER | changes, "acoustic": {"options": {"solver_steps": 4}}}
    return replace(load("minimax_music3", tiny_checkpoint(), overrides=overrides), leases=replace(QUICK, ttl_s=5.0))


@pytest.fixture(scope="module")
def settings() -> Settings:
    return with_talker()


@pytest.fixture(scope="module")
def engine():
    """A talker with these settings; the engine before it ends, for a process has one at a time."""
    torch.set_num_threads(1)
    running_now: dict[str, LoadedTalker] = {}

    def close() -> None:
        while running_now:
            running_now.popitem()[1].runner.close()

    def start(**changes) -> LoadedTalker:
        if repr(changes) not in running_now:
            close()
            running_now[repr(changes)] = run.load_talker(with_talker(**changes))
        return running_now[repr(changes)]

    yield start
    close()


@pytest.fixture(scope="module")
def sounder(settings):
    return run.load_acoustic(settings)


@pytest.fixture
def talker(real_broker, settings):
    """A talker worker around an engine."""

    return lambda loaded: talker_worker(real_broker, settings, loaded)


@pytest.fixture
def acoustic(real_broker, settings, sounder):
    """An acoustic worker."""

    return lambda: acoustic_worker(real_broker, settings, sounder)


def free_blocks(runner) -> int:
    return runner._core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


async def finish(client, job: str) -> tuple[JobState, str]:
    """The job's final state, and the sha256 of its PCM."""
    state = await reach(client.producer, job, lambda state: state.status.final)
    sound = await client.get(f"/v1/jobs/{job}/audio?format=pcm")
    return state, hashlib.sha256(sound.content).hexdigest()


async def test_one_song_one_sha256(client, engine, talker, acoustic):
    """Alone and among eight, polled, streamed and spoken, by windows and as a whole."""
    others = [SONG | {"seed": seed, "max_new_tokens": 40 * seed, "input": LYRICS[: 20 * seed]} for seed in (1, 2, 3)]
    with running(talker(engine()), acoustic()):
        state, alone = await finish(client, (await client.post("/v1/jobs", json=SONG)).json()["id"])
        assert state.frames == SONG["max_new_tokens"]  # the model does not end it: there are windows to go wrong
        assert await sing(client, SONG | {"seed": 42, "max_new_tokens": 60}) != alone
        together = await asyncio.gather(
            sing(client, SONG),
            *(sing(client, song) for song in others),
            stream(client, SONG),
            speak(client, SONG),
            speak(client, SONG, stream_format="audio"),
            sing(client, SONG | {"async_chunk": False}),
        )
        assert [together[0], *together[4:]] == [alone] * 5
        assert [await sing(client, song) for song in others] == together[1:4]


async def test_cancelled_while_queued(client, engine, talker, acoustic):
    job = (await client.post("/v1/jobs", json=SONG)).json()["id"]
    assert (await client.delete(f"/v1/jobs/{job}")).json()["status"] == "cancelled"
    loaded = engine()
    before = free_blocks(loaded.runner)
    with running(talker(loaded), acoustic()):
        await sing(client, SHORT)
        state = await client.producer.jobs.state(job)
    assert (state.status, state.admitted_at, state.rows_freed) == (Status.CANCELLED, {}, ())
    assert free_blocks(loaded.runner) == before


@pytest.mark.parametrize(
    ("song", "steps", "stage"),
    [
        pytest.param(SONG | {"input": LYRICS * 6}, 3, lambda state: not state.draws, id="prefilling"),
        pytest.param(SONG, 60, lambda state: not state.spans, id="before the first window"),
        pytest.param(SONG | {"max_new_tokens": 400}, 215, lambda state: state.spans, id="in mid-song"),
    ],
)
async def test_cancelled_while_the_engine_has_its_rows(client, engine, talker, acoustic, song, steps, stage):
    """Its rows go at the next step, its blocks with them; the song beside it and the next one are unharmed."""
    loaded = engine()
    runner, worker = loaded.runner, talker(loaded)
    before = free_blocks(runner)
    began = runner.steps
    with running(worker, acoustic()), holding(runner, lambda: runner.steps == began + steps) as (held, let_go):
        job = (await client.post("/v1/jobs", json=song)).json()["id"]
        await until(held.is_set)
        await reach(client.producer, job, stage)
        assert free_blocks(runner) < before
        assert (await client.delete(f"/v1/jobs/{job}")).json()["status"] == "cancelled"
        beside = asyncio.create_task(sing(client, SHORT))
        await until(lambda: job in worker._ownership.signals._cancelled)
        let_go.set()
        [event] = await freed(client.producer, job)
        assert (event.payload.rows, event.payload.why) == (2, "job.cancelled")
        assert event.payload.step == began + steps + 1
        assert await beside == await sing(client, SHORT)
        state = await client.producer.jobs.state(job)
    assert (state.status, state.terminal) == (Status.CANCELLED, False)
    assert free_blocks(runner) == before and runner.idle and runner.free_jobs == TALKER["max_jobs"]


async def test_a_torch_talker_leaves_the_engine_s_songs_alone(client, engine, talker, acoustic, settings):
    """Another runner is another profile: it sings other songs, and only the engine's own goes on with this one."""
    loaded = engine()
    runner = loaded.runner
    began = runner.steps
    with running(acoustic()):
        with running(talker(loaded)) as stop, holding(runner, lambda: runner.steps == began + 150) as (held, let_go):
            job = (await client.post("/v1/jobs", json=SONG)).json()["id"]
            await until(held.is_set)
            stop.set()
            let_go.set()
        left = await client.producer.jobs.state(job)
        assert left.draws and not left.status.final
        torch_talker = run.load_talker(replace(settings, talker=TalkerSettings(max_model_len=512)))
        assert torch_talker.profile != loaded.profile
        with running(talker(torch_talker)):
            await sing(client, SHORT)  # it has tried the one that was left, which came first
            assert await client.producer.jobs.state(job) == left
        with running(talker(loaded)):
            state, sha = await finish(client, job)
            assert state.status is Status.COMPLETED and state.attempts[keys.TALKER] == 2
            assert sha == await sing(client, SONG)


async def test_an_engine_that_breaks_gives_every_song_back(client, engine, talker, acoustic):
    """Rows and leases go with the talker; the next one's songs sound as if nothing had been."""
    songs = [SHORT | {"seed": seed} for seed in (2, 3, 4)]
    loaded = engine()
    runner = loaded.runner
    with running(acoustic()):
        with running(talker(loaded)):
            expected = [await sing(client, song) for song in songs]

        def break_down(*_) -> None:
            raise RuntimeError("the device is lost")

        with pytest.raises(RuntimeError, match="the device is lost"), running(talker(loaded)):
            with holding(runner, lambda: len(runner.talker._songs) == 3) as (held, let_go):
                jobs = [(await client.post("/v1/jobs", json=song)).json()["id"] for song in songs]
                await until(held.is_set)
                runner.talker.post_sample = break_down
                let_go.set()
                left = [await reach(client.producer, job, lambda state: state.rows_freed) for job in jobs]
        assert runner.idle
        assert [[freed.why for freed in state.rows_freed] for state in left] == [["broke"]] * 3
        with running(talker(engine(num_gpu_blocks=None))):  # an engine anew
            heard = [await finish(client, job) for job in jobs]
    assert [sha for _, sha in heard] == expected
    assert [state.attempts[keys.TALKER] for state, _ in heard] == [2] * 3


async def test_short_of_memory_songs_wait_and_keep_their_bytes(client, engine, talker, acoustic):
    songs = [SONG | {"seed": seed, "max_new_tokens": 130, "input": LYRICS[: 12 + 8 * seed]} for seed in range(8)]
    with running(talker(engine()), acoustic()):
        expected = await asyncio.gather(*(sing(client, song) for song in songs))
    loaded = engine(num_gpu_blocks=36)
    with running(talker(loaded), acoustic()):
        assert await asyncio.gather(*(sing(client, song) for song in songs)) == expected
    assert loaded.runner.preemptions > 0
    assert free_blocks(loaded.runner) == 36 - 1


async def test_a_song_without_memory_fails_alone(client, engine, talker, acoustic):
    """The checks at the start rule it out: here blocks go away after them."""
    songs, loaded = [SHORT | {"seed": seed} for seed in (2, 3)], engine()
    before, pool = free_blocks(loaded.runner), loaded.runner._core.scheduler.kv_cache_manager.block_pool
    with running(talker(loaded), acoustic()):
        expected = await asyncio.gather(*(sing(client, song) for song in songs))
    lost = pool.get_new_blocks(before - 15)
    with running(talker(loaded), acoustic()):
        job = (await client.post("/v1/jobs", json=SONG)).json()["id"]
        beside = asyncio.gather(*(sing(client, song) for song in songs))
        state = await reach(client.producer, job, lambda state: state.status.final and state.rows_freed)
        assert await beside == await asyncio.gather(*(sing(client, song) for song in songs)) == expected
    assert (state.status, state.error.code) == (Status.FAILED, "does_not_fit")
    assert "key-value cache" in state.error.message
    pool.free_blocks(lost)
    assert loaded.runner.idle and free_blocks(loaded.runner) == before


async def test_a_song_that_reaches_the_end_of_its_positions_is_delivered(client, engine, talker, acoustic):
    """The api knows of no limit so near; the frames that there are sound, and the reason says why they end."""
    loaded = engine()
    with running(talker(loaded), acoustic()):
        songs = [SONG | {"input": LYRICS * 15, "async_chunk": async_chunk} for async_chunk in (True, False)]
        heard = [await finish(client, (await client.post("/v1/jobs", json=song)).json()["id"]) for song in songs]
    for state, _ in heard:
        prompt = len(loaded.model.prompts(state.request)[0])
        assert (state.status, state.reason) == (Status.COMPLETED, "length")
        assert 0 < state.frames == TALKER["max_model_len"] - prompt - 1 < SONG["max_new_tokens"]
    assert heard[0][1] == heard[1][1]
