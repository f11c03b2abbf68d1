"""Rules 2 and 3 with the real MiniMax-Music3 architecture, at its tiny size: one song, one sha256."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest

from api.app import create_app
from api.settings import ApiSettings
from broker_schemas import keys
from broker_schemas.job import Status, fold
from producer.follow import Chunk
from tests.crew import holding
from tests.stand_ins import QUICK
from tests.tiny_checkpoint import tiny_checkpoint
from tests.waiting import PATIENCE_S, reach, until
from workers import run
from workers.models.family import load_family
from workers.settings import Settings, load

LYRICS = "[verse]\nThe river keeps its own slow time\n[chorus]\nAnd we go down, and we go down"
SONG = {
    "model": "minimax_music3", "input": LYRICS, "instructions": "a slow folk song, one voice", "seed": 5,
    "max_new_tokens": 330,
}  # fmt: skip
OTHERS = [
    SONG
    | {"seed": seed, "max_new_tokens": 20 + 23 * seed, "input": LYRICS[: 20 + 4 * seed], "instructions": "loud " * seed}
    for seed in range(1, 16)
]


@pytest.fixture(scope="module")
def settings() -> Settings:
    leases = replace(QUICK, ttl_s=5.0, sweep_s=0.3)
    return replace(load("minimax_music3", tiny_checkpoint()), leases=leases)


@contextmanager
def serving(broker, settings: Settings, *, talkers: int = 1, acoustics: int = 1, talker=None, acoustic=None):
    """Real workers, each in a thread with its own copy of the weights, or around the `talker` or `acoustic` given."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=run.run_talker, args=(broker, settings, stop), kwargs={"loaded": talker})
        for _ in range(talkers)
    ]
    threads += [
        threading.Thread(target=run.run_acoustic, args=(broker, settings, stop), kwargs={"loaded": acoustic})
        for _ in range(acoustics)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.fixture
async def client(real_broker, settings):
    contract = load_family(settings.family).contract(settings.checkpoint, 10_240)
    app = create_app(real_broker, {settings.model: contract}, ApiSettings())
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://songline", timeout=600) as client,
    ):
        client.producer = await app.state.service.producer()
        yield client


async def sing(client, song: dict) -> str:
    """Submit, poll, and fetch the file: the sha256 of its PCM."""
    job = (await client.post("/v1/jobs", json=song)).json()["id"]
    async with asyncio.timeout(600):
        while (await client.get(f"/v1/jobs/{job}?wait=20")).json()["status"] not in (
            "completed",
            "failed",
            "cancelled",
        ):
            pass
    sound = await client.get(f"/v1/jobs/{job}/audio?format=pcm")
    assert sound.status_code == 200, sound.text
    state = fold(await client.producer.jobs.events(job))
    assert state.status is Status.COMPLETED and state.frames <= song["max_new_tokens"]
    return hashlib.sha256(sound.content).hexdigest()


async def stream(client, song: dict) -> str:
    job = (await client.post("/v1/jobs", json=song)).json()["id"]
    async with client.stream("GET", f"/v1/jobs/{job}/stream?format=pcm") as response:
        return hashlib.sha256(b"".join([part async for part in response.aiter_bytes()])).hexdigest()


async def speak(client, song: dict, **how) -> str:
    response = await client.post("/v1/audio/speech", json=song | {"response_format": "pcm"} | how)
    assert response.status_code == 200, response.text
    return hashlib.sha256(response.content).hexdigest()


@pytest.mark.redis
@pytest.mark.timeout(900)
async def test_one_song_one_sha256(client, real_broker, settings):
    with serving(real_broker, settings):
        alone = await sing(client, SONG)
        assert (await client.get("/v1/jobs")).json()["data"][0]["frames"] == SONG["max_new_tokens"]
        assert await stream(client, SONG) == alone
        assert await speak(client, SONG) == alone
        assert await speak(client, SONG, stream_format="audio") == alone
        assert await sing(client, SONG | {"async_chunk": False}) == alone
        assert await sing(client, SONG | {"seed": 42}) != alone
        batch = await asyncio.gather(
            *(sing(client, song) for song in OTHERS[:7]),
            sing(client, SONG),
            *(sing(client, song) for song in OTHERS[7:]),
        )
        assert batch[7] == alone
    few = replace(settings, acoustic=replace(settings.acoustic, max_num_seqs=2))  # so that one cannot take them all
    with serving(real_broker, few, talkers=2, acoustics=2):
        await until(lambda: real_broker.client().hlen(keys.WORKERS) == 4)
        again = await asyncio.gather(
            *(sing(client, song) for song in OTHERS), sing(client, SONG), sing(client, SONG | {"async_chunk": False})
        )
        assert again[-2:] == [alone, alone]
        assert again[:15] == batch[:7] + batch[8:]
    jobs = [job.decode() for job in real_broker.client().zrange(keys.jobs("anonymous"), 0, -1)]
    took = {
        role: {
            event.by
            for job in jobs
            for event in await client.producer.jobs.events(job)
            if event.data.get("role") == role
        }
        for role in keys.ROLES
    }
    assert all(len(workers) == 3 for workers in took.values())  # all of them sang


@pytest.mark.redis
async def test_cancelled_while_prefilling(client, real_broker, settings):
    """A long prompt is cut into chunks over several steps; its rows go in between."""
    song = SONG | {"input": LYRICS * 60, "max_new_tokens": 100}
    slow = replace(settings, talker=replace(settings.talker, prefill_chunk=8))
    talker = run.load_talker(slow)
    with (
        serving(real_broker, slow, talker=talker),
        holding(talker.runner, lambda: talker.runner.steps == 20) as (held, let_go),
    ):
        job = (await client.post("/v1/jobs", json=song)).json()["id"]
        running = asyncio.create_task(sing(client, SONG | {"max_new_tokens": 120}))
        await until(held.is_set)
        await reach(client.producer, job, lambda state: state.status is Status.TALKING)
        assert (await client.delete(f"/v1/jobs/{job}")).json()["status"] == "cancelled"
        let_go.set()
        beside = await running
        assert await sing(client, SONG | {"max_new_tokens": 120}) == beside
        state = await client.producer.jobs.state(job)
    assert state.status is Status.CANCELLED and state.draws == 0
    assert [freed.rows for freed in state.rows_freed] == [2]


@pytest.mark.redis
async def test_a_follower_hears_while_the_song_is_made(client, real_broker, settings):
    acoustic, heard = run.load_acoustic(settings), threading.Event()
    window = acoustic.model.window

    def once_the_first_is_heard(*args, index: int, **kwargs):
        assert index == 0 or heard.wait(PATIENCE_S)
        return window(*args, index=index, **kwargs)

    acoustic.model.window = once_the_first_is_heard
    with serving(real_broker, settings, acoustic=acoustic):
        job = (await client.post("/v1/jobs", json=SONG)).json()["id"]
        heard_at = []
        async for item in client.producer.jobs.follow(job):
            if isinstance(item, Chunk):
                heard.set()
                heard_at.append((await client.producer.jobs.state(job)).chunks)
    assert heard_at[0] == 1 and len(heard_at) > 1
