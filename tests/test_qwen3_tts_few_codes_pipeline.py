"""One utterance, one sha256, with a Qwen3-TTS checkpoint of eight codes a frame that reads phonemes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch

from tests import test_same_bytes
from tests.crew import acoustic_worker, talker_worker
from tests.stand_ins import QUICK, running
from tests.test_same_bytes import sing, speak, stream
from tests.tiny_checkpoint import tiny_checkpoint
from tests.utterances import MODEL, POSITIONS, TEXT
from workers import run
from workers.settings import Settings, load

pytestmark = [pytest.mark.redis, pytest.mark.timeout(600)]

SPEECH = {"model": MODEL, "input": TEXT, "voice": "ryan", "seed": 2, "max_new_tokens": 30}
LONG = SPEECH | {"input": f"{TEXT} " * 15, "max_new_tokens": 40, "seed": 3}  # of two passages
OTHERS = [SPEECH | {"seed": seed, "input": TEXT + " And on." * seed, "voice": "vivian"} for seed in range(3)]

client = test_same_bytes.client


@pytest.fixture(params=["torch", pytest.param("v1", marks=pytest.mark.vllm)])
def settings(request) -> Settings:
    torch.set_num_threads(1)
    talker = {"model_runner": request.param, "max_jobs": 4, "max_model_len": POSITIONS}
    settings = load(MODEL, tiny_checkpoint(MODEL, size="tiny-8"), overrides={"talker": talker})
    return replace(settings, leases=replace(QUICK, ttl_s=5.0))


@pytest.fixture
def talking(settings):
    talking = run.load_talker(settings)
    yield talking
    if settings.talker.model_runner != "torch":
        talking.runner.close()


async def test_one_utterance_one_sha256(client, real_broker, settings, talking):
    talker = talker_worker(real_broker, settings, talking)
    with running(talker, acoustic_worker(real_broker, settings, run.load_acoustic(settings))):
        asked = [SPEECH, *OTHERS, LONG]
        alone = [await sing(client, speech) for speech in asked]
        assert len(set(alone)) == len(asked)
        assert await asyncio.gather(*(sing(client, speech) for speech in asked)) == alone
        ways = (stream(client, SPEECH), speak(client, SPEECH), sing(client, SPEECH | {"async_chunk": False}))
        assert await asyncio.gather(*ways) == alone[:1] * 3
