"""Qwen3-TTS's workers that die or leave in mid-speech: one sha256, no chunk twice (rules 1, 2 and 4).

The acoustic stage stores no state: whoever takes over decodes again, in the same cuts, what is out already.
"""

from __future__ import annotations

import signal

import pytest

from broker_schemas import keys
from tests.chaos.conftest import Nursery
from tests.chaos.test_kills import done, freeze_at_work, handed_on, outcome, submit, submit_and_freeze, undisturbed
from tests.redis_server import RedisServer
from tests.test_qwen3_tts_long_text import LONG, short_passages  # noqa: F401, a fixture
from tests.tiny_checkpoint import tiny_checkpoint
from tests.waiting import reach

pytestmark = [pytest.mark.redis, pytest.mark.timeout(600)]

TORCH = "torch"
V1 = pytest.param("v1", marks=pytest.mark.vllm)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def nursery(request, server, tmp_path_factory):
    log = tmp_path_factory.mktemp("nursery") / "workers.log"
    nursery = Nursery(server.url, log, "qwen3_tts", str(tiny_checkpoint("qwen3_tts")), "2", request.param)
    yield nursery
    nursery.close()


@pytest.fixture
async def whole(patron, nursery):
    """The utterance with nobody killed, and its sha256; a talker and an acoustic worker go on."""
    nursery.clear()
    return await undisturbed(patron, nursery)


@pytest.mark.parametrize("nursery", [TORCH, V1], indirect=True)
async def test_kill_9_of_the_talker(patron, nursery, whole):
    """Before its first span, and in the middle."""
    (speech, expected), alive = whole, nursery.pids[0]
    for after in (0, 3, speech.spans - 1):
        job = await submit_and_freeze(patron, nursery, alive, keys.TALKER, after=after, of=speech.spans)
        nursery.kill(alive)
        alive = nursery.start(keys.TALKER)
        await handed_on(patron, job, expected, keys.TALKER)


@pytest.mark.parametrize("nursery", [TORCH, V1], indirect=True)
async def test_kill_9_of_a_talker_whose_spans_come_all_at_the_end(patron, nursery, whole):
    """The frames that it has made are in the log hop by hop; the others are drawn anew."""
    (_, expected), talker = whole, nursery.pids[0]
    while not await freeze_at_work(
        patron, nursery, job := await submit(patron, nursery, async_chunk=False), talker, keys.TALKER, after=0, of=1,
        begun=lambda state: state.draws,
    ):  # fmt: skip
        await outcome(patron, job)
    nursery.kill(talker)
    nursery.start(keys.TALKER)
    await handed_on(patron, job, expected, keys.TALKER)


@pytest.mark.parametrize("nursery", [TORCH], indirect=True)
async def test_kill_9_of_the_talker_of_a_long_text(patron, nursery, whole, short_passages):  # noqa: F811
    """In each of its passages."""
    asked = {name: value for name, value in LONG.items() if name in ("input", "voice")}
    text = nursery.song(
        LONG["seed"], LONG["max_new_tokens"], do_sample=True, non_streaming_mode=True, language="Auto", **asked
    )

    async def tell() -> str:
        return (await patron.submit(text, reserve_bytes=1, body=1)).id

    told, expected = await outcome(patron, await tell())
    ends = [end.frame for end in told.ends]
    assert len(ends) == 3 and ends[0] >= 16 and ends[-1] - ends[-2] > 50
    alive = nursery.pids[0]
    for after in (3, 5, told.spans - 1):  # 7 frames are in the log, 31, and all but the last hop's
        while not await freeze_at_work(
            patron, nursery, job := await tell(), alive, keys.TALKER, after=after, of=told.spans
        ):
            await outcome(patron, job)
        nursery.kill(alive)
        alive = nursery.start(keys.TALKER)
        state = await handed_on(patron, job, expected, keys.TALKER)
        assert state.ends == told.ends


@pytest.mark.parametrize("nursery", [TORCH], indirect=True)
async def test_kill_9_of_the_acoustic_worker(patron, nursery, whole):
    (speech, expected), alive = whole, nursery.pids[1]
    for after in (0, 3, speech.chunks - 1):
        job = await submit_and_freeze(patron, nursery, alive, keys.ACOUSTIC, after=after, of=speech.chunks)
        nursery.kill(alive)
        alive = nursery.start(keys.ACOUSTIC)
        await handed_on(patron, job, expected, keys.ACOUSTIC)


@pytest.mark.parametrize("nursery", [TORCH], indirect=True)
async def test_kill_9_of_both(patron, nursery, whole):
    (speech, expected), (talker, sounder) = whole, nursery.pids
    job = await submit_and_freeze(patron, nursery, talker, keys.TALKER, after=3, of=speech.spans)
    await reach(patron, job, lambda state: state.chunks)
    for pid in (talker, sounder):
        nursery.kill(pid)
    for role in keys.ROLES:
        nursery.start(role)
    await handed_on(patron, job, expected, *keys.ROLES)


@pytest.mark.parametrize("role", keys.ROLES)
@pytest.mark.parametrize("nursery", [TORCH, V1], indirect=True)
async def test_a_stop_hands_over(patron, nursery, whole, role):
    speech, expected = whole
    leaving = nursery.pids[keys.ROLES.index(role)]
    job = await submit_and_freeze(patron, nursery, leaving, role, after=3, of=done(speech, role))
    nursery.start(role)
    nursery.kill(leaving, signal.SIGTERM)
    nursery.kill(leaving, signal.SIGCONT)
    state = await handed_on(patron, job, expected, role)
    if role == keys.TALKER:
        assert next(freed.why for freed in state.rows_freed) == "handed over"
