"""A job computed again, and held against the first one: which of them differs, where, and when nothing can be said."""

import asyncio
import threading

import pytest

from compose.trouble import UNVERIFIABLE, Trouble
from compose.verification import request_of, verified
from producer import Songline
from tests.api.conftest import serving
from tests.api.player import SAMPLES, HumContract, Player
from tests.conftest import FakeBroker
from tests.waiting import until

RATE = HumContract.sample_rate


@pytest.fixture
def own_broker():
    return FakeBroker()


@pytest.fixture
async def server(own_broker):
    async with serving(own_broker) as api:
        yield api


class Worker:
    """Plays every job that is queued as it is told, until it is stopped."""

    def __init__(self, url, broker, play):
        self._url, self._broker, self._play = url, broker, play
        self._stop = threading.Event()

    def run(self):
        with Songline(self._url) as songline:
            while not self._stop.wait(0.01):
                for job in songline.jobs(status="queued"):
                    self._play_if_wanted(job)

    def _play_if_wanted(self, job):
        try:
            self._play(Player(self._broker, job.id), job.seed)
        except AssertionError as refused:  # the job was forgotten meanwhile: its bytes were other ones
            if not any(status in str(refused) for status in ("'final'", "'gone'")):
                raise

    async def __aenter__(self):
        self._running = asyncio.ensure_future(asyncio.to_thread(self.run))

    async def __aexit__(self, *_):
        self._stop.set()
        await self._running


def as_before(player, seed):
    player.play(seed, 3)


def otherwise_from_the_second(player, seed):
    player.admit(seed)
    player.sound(1)
    player.seed = seed + 1
    player.sound(2, last=True)
    player.complete()


async def verdict_on(server, broker, play):
    """Of a job that `play` plays the second time."""
    job = await server.played()
    async with Worker(server.url, broker, play):
        with Songline(server.url) as songline:
            return job["id"], await asyncio.to_thread(verified, songline, job["id"])


async def ids(server):
    return [job["id"] for job in (await server.http.get("/v1/jobs")).json()["data"]]


async def test_the_same_bytes(server, own_broker):
    job, verdict = await verdict_on(server, own_broker, as_before)
    assert (verdict.job, verdict.same, verdict.chunks, verdict.difference) == (job, True, 3, None)
    assert await ids(server) == [job]  # the second one is forgotten


async def test_where_they_differ_first(server, own_broker):
    job, verdict = await verdict_on(server, own_broker, otherwise_from_the_second)
    assert (verdict.same, verdict.chunks, verdict.at) == (False, 1, SAMPLES / RATE)
    assert "sha256" in verdict.difference
    assert await ids(server) == [job]


@pytest.mark.parametrize(("windows", "same", "told"), [(2, 2, "1 chunks early"), (4, 3, "goes on")])
async def test_another_length(server, own_broker, windows, same, told):
    _, verdict = await verdict_on(server, own_broker, lambda player, seed: player.play(seed, windows))
    assert (verdict.same, verdict.chunks) == (False, same)
    assert told in verdict.difference


async def cannot(server, broker, job, play=as_before):
    async with Worker(server.url, broker, play):
        with Songline(server.url) as songline, pytest.raises(Trouble, match="cannot be verified") as trouble:
            await asyncio.to_thread(verified, songline, job)
    assert trouble.value.code == UNVERIFIABLE
    return str(trouble.value)


async def test_another_profile_says_nothing(server, own_broker):
    def elsewhere(player, seed):
        player.admit(seed, profile="q")
        player.sound(1, last=True)
        player.complete()

    job = (await server.played())["id"]
    assert "profile is another now" in await cannot(server, own_broker, job, elsewhere)
    assert await ids(server) == [job]


async def test_a_second_job_that_fails_says_nothing(server, own_broker):
    def fails(player, seed):
        player.admit(seed)
        player.fail()

    assert "no frames" in await cannot(server, own_broker, (await server.played())["id"], fails)


async def test_a_job_that_is_not_completed(server):
    job = (await server.submit())["id"]
    with Songline(server.url) as songline:
        with pytest.raises(Trouble, match="is queued") as trouble:
            await asyncio.to_thread(verified, songline, job)
    assert trouble.value.code == UNVERIFIABLE


async def test_a_job_whose_sound_has_expired(server, own_broker):
    job = (await server.played())["id"]
    server.player({"id": job}).expire()
    await until(lambda: own_broker.client().exists(f"sl:{{{job}}}:log") == 0)
    assert "expired" in await cannot(server, own_broker, job)


def view(**state):
    return type("View", (), {"id": "job_1", "model": "m", "seed": 3, "state": {"input": "la", "voice": None, **state}})


def test_a_request_is_made_of_what_the_api_shows():
    params = {"temperature": 0.9, "ref_text": "", "x_vector_only_mode": False, "passages": [1], "top_k": 0}
    assert request_of(view(params=params)) == {
        "model": "m", "input": "la", "seed": 3, "temperature": 0.9, "x_vector_only_mode": False, "top_k": 0,
    }  # fmt: skip


def test_a_cloned_voice_is_named_again_and_a_recording_cannot_be():
    cloned = {"voice": "", "ref_audio": "5" * 64, "ref_text": "Hello."}
    assert request_of(view(params=cloned, voice="anna")) == {
        "model": "m", "input": "la", "seed": 3, "voice": "anna", "ref_text": "Hello.",
    }  # fmt: skip
    with pytest.raises(Trouble, match="does not give back"):
        request_of(view(params=cloned))
