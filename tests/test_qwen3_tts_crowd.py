"""Rule 3 with 64 utterances of Qwen3-TTS at once, through the whole pipeline: each has the bytes that it has alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch

from broker_schemas.job import Status, fold
from tests import test_same_bytes
from tests.crew import acoustic_worker, holding, talker_worker
from tests.stand_ins import QUICK, running
from tests.test_pipeline import listen, sha256
from tests.test_qwen3_tts_pipeline import cancel, submit
from tests.tiny_checkpoint import tiny_checkpoint
from tests.utterances import MODEL, WAYS, contract
from tests.waiting import until
from workers import run
from workers.settings import Settings, load

pytestmark = [pytest.mark.redis, pytest.mark.timeout(600)]

CROWD = 64
DISTINCT = 40  # of them; the others say the same again
LEAVING = range(0, CROWD, 8)
LONG = {"max_new_tokens": 60}
TEXTS = (
    "The river keeps its own slow time.",
    "河流有自己的时间。",
    "Der Fluss hat es nicht eilig; niemand fragt ihn danach.",
    "川には川の時間がある。",
    "Yes.",
    "Le fleuve prend son temps, et personne sur la rive ne le presse.",
    "3.14",
)
LANGUAGES = ("Auto", "English", "Chinese", "German", "French", "Japanese")

client = test_same_bytes.client


def utterance(number: int) -> dict[str, Any]:
    """A request: no two numbers below DISTINCT have the same."""
    number %= DISTINCT
    voices = contract().voices
    return {
        "model": MODEL,
        "input": TEXTS[number % len(TEXTS)],
        "voice": voices[number % len(voices)],
        "language": LANGUAGES[number % len(LANGUAGES)],
        "seed": number // 2,
        "max_new_tokens": 6 + 5 * number % 7,
        "first_chunk_frames": 1 + 3 * number % 8,
        "async_chunk": number % 5 > 0,
    } | WAYS[number % len(WAYS)]


@pytest.fixture(scope="module")
def settings() -> Settings:
    torch.set_num_threads(1)
    overrides = {
        "talker": {"max_jobs": CROWD, "max_model_len": 256, "ready_limit": 2 * CROWD},
        "acoustic": {"max_num_seqs": CROWD, "max_num_batched_tokens": 26 * 16 * CROWD, "options": {"batch": 4}},
    }
    settings = load(MODEL, tiny_checkpoint(MODEL), overrides=overrides)
    return replace(settings, leases=replace(QUICK, ttl_s=10.0))


async def heard(client, job: str) -> str:
    """The sha256 of a job's sound, once it is completed."""
    events, chunks = await listen(client.producer, job)
    state = fold(events)
    assert state.status is Status.COMPLETED, (state.status, state.error)
    return sha256(chunks)


async def test_a_crowd_has_the_bytes_of_each_alone(client, real_broker, settings):
    """Some leave in the middle, before or after their first frame, and others take their rows."""
    talking, sounding = run.load_talker(settings), run.load_acoustic(settings)
    runner = talking.runner
    with running(talker_worker(real_broker, settings, talking), acoustic_worker(real_broker, settings, sounding)):
        alone = [await heard(client, await submit(client, utterance(number))) for number in range(DISTINCT)]
    assert len(set(alone)) == DISTINCT
    jobs = [await submit(client, utterance(number) | (LONG if number in LEAVING else {})) for number in range(CROWD)]
    talker, began = talker_worker(real_broker, settings, talking), runner.steps
    with running(talker, acoustic_worker(real_broker, settings, sounding)):
        with holding(runner, lambda: True) as (held, _):
            await until(held.is_set)
            await until(lambda: len(talker._talking) + len(talker._taken) == CROWD)
        with holding(runner, lambda: runner.steps >= began + 5) as (held, _):
            await until(held.is_set)
            assert runner.free_jobs == 0
            drawn = [talker._talking[jobs[number]].reading.history.frames for number in LEAVING]
            assert min(drawn) == 0 < max(drawn)
            for number in LEAVING:
                await cancel(client, jobs[number])
            late = [await submit(client, utterance(number)) for number in LEAVING]
        stay = [number for number in range(CROWD) if number not in LEAVING]
        crowd = await asyncio.gather(*(heard(client, jobs[number]) for number in stay))
        taken = await asyncio.gather(*(heard(client, job) for job in late))
    assert crowd == [alone[number % DISTINCT] for number in stay]
    assert taken == [alone[number % DISTINCT] for number in LEAVING]
    assert runner.idle and runner.free_jobs == CROWD
