"""Both clients against a real server: what they send, hear, save and raise. The jobs' workers are a `Player`."""

import asyncio
import hashlib
import inspect
import subprocess
import sys
import wave

import httpx
import numpy as np
import pytest

from producer import AsyncJob, AsyncSongline, Job, JobEnded, NotInTime, Refused, Songline, Unreachable, exchanges, sound
from producer.submit import Limits
from tests.api.conftest import serving
from tests.api.player import SAMPLES, Player, song, window_pcm
from tests.conftest import FakeBroker
from tests.producer.threaded import Threaded

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def own_broker():
    return FakeBroker()


@pytest.fixture
async def server(own_broker):
    async with serving(own_broker) as api:
        yield api


@pytest.fixture(params=[Songline, AsyncSongline], ids=["sync", "async"])
def connect(request):
    """Makes a client, as the async one is used."""

    def connect(url, **options):
        client = request.param(url, **options)
        return Threaded(client) if request.param is Songline else client

    return connect


@pytest.fixture
async def client(server, connect):
    client = connect(server.url)
    yield client
    await client.close()


@pytest.fixture
def player(own_broker):
    return lambda job: Player(own_broker, job.id)


async def played(client, player, windows=3):
    job = await client.sing("la la", model="hum", seed=5)
    await asyncio.to_thread(player(job).play, 5, windows)
    return job


async def heard(job, **options):
    return [chunk async for chunk in job.chunks(**options)]


async def test_a_song_is_asked_for_as_it_is_said(client):
    job = await client.sing("la la", caption="soft", model="hum", seed=7, max_new_tokens=50)
    assert (job.model, job.seed, job.status, job.final) == ("hum", 7, "queued", False)
    assert job.state["input"] == "la la"
    assert job.state["params"] == {"instructions": "soft", "max_new_tokens": 50}


async def test_speech_is_asked_for_as_it_is_said(client):
    job = await client.say("hello", model="hum", voice="default", instructions="soft", seed=1)
    assert job.state["params"]["instructions"] == "soft"
    with pytest.raises(Refused, match="voice") as refused:
        await client.say("hello", model="hum", voice="anna")
    assert (refused.value.status, refused.value.code, refused.value.field) == (400, "invalid_value", "voice")


async def test_each_client_asks_for_its_own_kind_of_model(client):
    for ask, model in ((client.say, "qwen3_tts"), (client.sing, "minimax_music3")):
        with pytest.raises(Refused, match=model) as refused:
            await ask("la la")
        assert (refused.value.status, refused.value.code) == (404, "model_not_found")


async def test_chunks_come_as_they_are_made(client, player):
    job = await client.sing("la la", model="hum", seed=5)
    worker = player(job)
    await asyncio.to_thread(worker.admit, 5)
    await asyncio.to_thread(worker.sound, 1)
    chunks = job.chunks()
    first = await anext(chunks)  # while the rest is not there yet
    await asyncio.to_thread(worker.sound, 2, last=True)
    await asyncio.to_thread(worker.complete)
    rest = [chunk async for chunk in chunks]
    assert [chunk.index for chunk in (first, *rest)] == [0, 1, 2]
    assert b"".join(chunk.pcm for chunk in (first, *rest)) == song(5, 3)
    assert rest[0].start_sample == SAMPLES
    assert rest[0].seconds == SAMPLES / 32_000
    assert rest[0].sha256 == hashlib.sha256(rest[0].pcm).hexdigest()
    assert rest[0].numpy().shape == (SAMPLES, 2)
    assert rest[0].numpy().tobytes() == window_pcm(5, 1)
    assert rest[0].numpy().dtype == np.int16
    assert job.status == "completed"


async def test_a_job_itself_gives_its_chunks(client, player):
    job = await played(client, player)
    assert [chunk.index async for chunk in job] == [0, 1, 2]
    assert [chunk.index for chunk in await heard(job, after=1)] == [2]


async def test_a_song_is_saved(client, player, tmp_path):
    job = await played(client, player)
    path = await job.save(tmp_path / "song.wav")
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (32_000, 2, 2)
        assert file.getnframes() == 3 * SAMPLES
        assert file.readframes(file.getnframes()) == song(5, 3)


async def test_what_fails_leaves_no_file_and_says_why(client, player, tmp_path):
    job = await client.sing("la la", model="hum", seed=5)
    worker = player(job)
    await asyncio.to_thread(worker.admit, 5)
    await asyncio.to_thread(worker.sound, 1)
    await asyncio.to_thread(worker.fail, retryable=True)
    for hear in (lambda: job.save(tmp_path / "song.wav"), lambda: heard(job), job.wait):
        with pytest.raises(JobEnded, match="no frames") as ended:
            await hear()
        assert (ended.value.status, ended.value.code, ended.value.retryable) == ("failed", "no_frames", True)
    assert list(tmp_path.iterdir()) == []


async def test_a_job_is_waited_for(client, player):
    job = await client.sing("la la", model="hum", seed=5)
    with pytest.raises(NotInTime):
        await job.wait(timeout=0)
    waiting = asyncio.ensure_future(job.wait())
    await asyncio.to_thread(player(job).play, 5, 2)
    done = await waiting
    assert (done.id, done.status, job.status) == (job.id, "completed", "completed")
    assert job.audio_seconds == 2 * SAMPLES / 32_000


async def test_a_job_that_is_cancelled_is_over(client):
    job = await client.sing("la la", model="hum")
    assert (await client.cancel(job.id)).status == "cancelled"
    assert (await job.refresh()).status == "cancelled"
    assert (await job.cancel()).status == "cancelled"
    for hear in (job.wait, lambda: heard(job)):
        with pytest.raises(JobEnded) as ended:
            await hear()
        assert (ended.value.status, ended.value.code) == ("cancelled", "job_cancelled")


async def test_a_job_that_is_purged_is_gone(client, player):
    job = await played(client, player)
    await job.purge()
    with pytest.raises(Refused) as refused:
        await client.job(job.id)
    assert (refused.value.status, refused.value.code) == (410, "job_expired")


async def test_jobs_are_listed_over_pages(client, monkeypatch):
    monkeypatch.setattr(exchanges, "_PAGE", 2)
    ids = [(await client.sing("la la", model="hum")).id for _ in range(5)]
    await client.cancel(ids[1])
    assert {job.id for job in await client.jobs()} == set(ids)
    assert len(await client.jobs(limit=3)) == 3
    assert [job.id for job in await client.jobs(status="cancelled")] == [ids[1]]


async def test_a_job_is_found_and_its_log_read(client, player):
    job = await client.job((await played(client, player, windows=1)).id)
    types = [event["type"] for event in await job.events()]
    assert (types[0], types[-1]) == ("job.requested", "job.completed")
    assert [model["id"] for model in await client.models()] == ["hum"]


async def test_the_same_key_gives_the_same_job(client):
    body = {"model": "hum", "input": "la", "seed": 1}
    first, again = [await client.submit(body, idempotency_key="k") for _ in range(2)]
    other = await client.submit(body)
    assert first.id == again.id != other.id
    with pytest.raises(Refused) as refused:
        await client.submit({**body, "seed": 2}, idempotency_key="k")
    assert refused.value.code == "idempotency_key_reused"


async def test_errors_have_the_apis_code(client):
    with pytest.raises(Refused) as refused:
        await client.job("job_none")
    assert (refused.value.status, refused.value.code) == (404, "job_not_found")


async def test_a_full_queue_says_when_to_come_back(own_broker, connect):
    async with serving(own_broker, limits=Limits(max_jobs=1)) as server:
        client = connect(server.url)
        await client.sing("la", model="hum")
        with pytest.raises(Refused) as refused:
            await client.sing("la", model="hum")
        assert (refused.value.code, refused.value.retry_after) == ("queue_full", 10.0)
        await client.close()


async def test_a_key_is_sent(own_broker, connect):
    async with serving(own_broker, api_keys=("ann:secret",)) as server:
        stranger, ann = connect(server.url), connect(server.url, api_key="secret")
        assert (await ann.sing("la", model="hum")).status == "queued"
        with pytest.raises(Refused) as refused:
            await stranger.jobs()
        assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")
        await stranger.close()
        await ann.close()


async def test_nobody_answers(connect):
    client = connect(NOWHERE)
    with pytest.raises(Unreachable, match=NOWHERE) as unreachable:
        await client.jobs()
    assert unreachable.value.code == "unreachable"
    await client.close()


class Cut:
    """Connections that break in the middle of a line, after so many bytes of each stream; None for whole ones."""

    def __init__(self, *after):
        self.after = list(after)
        self.asked = []  # the Last-Event-ID of each stream

    def note(self, request):
        """How much of this request's answer comes through."""
        if not request.url.path.endswith("/stream"):
            return None
        self.asked.append(request.headers["last-event-id"])
        return self.after.pop(0) if self.after else None


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, body):
        self._body = body

    def __iter__(self):
        yield self._body
        raise httpx.ReadError("cut")

    async def __aiter__(self):
        yield self._body
        raise httpx.ReadError("cut")


def cutting(cut, client_of):
    """A transport for the client under test."""

    class Sync(httpx.HTTPTransport):
        def handle_request(self, request):
            answer, most = super().handle_request(request), cut.note(request)
            return answer if most is None else httpx.Response(200, stream=Pieces(answer.read()[:most]))

    class Async(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request):
            answer, most = await super().handle_async_request(request), cut.note(request)
            return answer if most is None else httpx.Response(200, stream=Pieces((await answer.aread())[:most]))

    return Sync() if client_of is Songline else Async()


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(sound, "_PAUSE_S", 0.0)


async def test_a_broken_stream_is_taken_up_where_it_broke(server, client, player, connect, request, at_once):
    job = await played(client, player)
    body = (await server.http.get(f"/v1/jobs/{job.id}/stream")).content
    before_the_end_of_the_first = body.index(b"\n\n", body.index(b"data:")) + 1  # its last line, and not the empty one
    cut = Cut(before_the_end_of_the_first, len(body) // 2, 10)
    other = connect(server.url, transport=cutting(cut, request.node.callspec.params["connect"]))
    chunks = await heard(await other.job(job.id))
    assert [chunk.index for chunk in chunks] == [0, 1, 2]
    assert b"".join(chunk.pcm for chunk in chunks) == song(5, 3)
    assert cut.asked == ["-1", "-1", "0", "0"]
    await other.close()


async def test_a_stream_that_brings_a_little_each_time_is_not_given_up(
    server, client, player, connect, request, at_once
):
    windows = 8
    job = await played(client, player, windows)
    body = (await server.http.get(f"/v1/jobs/{job.id}/stream")).content
    cut = Cut(*[len(body) // windows + 500] * (windows - 1))  # a chunk, and some of the next
    other = connect(server.url, transport=cutting(cut, request.node.callspec.params["connect"]))
    chunks = await heard(await other.job(job.id))
    assert b"".join(chunk.pcm for chunk in chunks) == song(5, windows)
    assert len(cut.asked) == windows
    await other.close()


async def test_a_stream_that_brings_nothing_is_given_up(server, client, player, connect, request, at_once):
    job = await played(client, player)
    cut = Cut(*[0] * 100)
    other = connect(server.url, transport=cutting(cut, request.node.callspec.params["connect"]))
    with pytest.raises(Unreachable, match="cut"):
        await heard(await other.job(job.id))
    assert len(cut.asked) == 5
    await other.close()


def test_both_clients_are_the_same_but_for_their_waiting():
    for waits, awaits in ((Songline, AsyncSongline), (Job, AsyncJob)):
        mine, other = ({n: m for n, m in vars(kind).items() if n[0] != "_"} for kind in (waits, awaits))
        assert mine.keys() == other.keys()
        for name, method in mine.items():
            assert inspect.signature(method).parameters.keys() == inspect.signature(other[name]).parameters.keys()
            assert method.__doc__ == other[name].__doc__


def test_the_client_needs_nothing_but_httpx():
    check = (
        "import sys, producer; ours = {'api', 'workers', 'compose', 'broker_schemas', 'numpy', 'redis', 'torch'}; "
        "assert not ours & {name.split('.')[0] for name in sys.modules}, ours & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
