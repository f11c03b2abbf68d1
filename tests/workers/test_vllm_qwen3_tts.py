"""vLLM as Qwen3-TTS's engine: the codes of the torch runner, whatever becomes of an utterance's memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.songs import admit, finish, sung
from tests.tiny_checkpoint import tiny_checkpoint
from tests.utterances import MODEL, TEXT, codes, utterance
from workers.models.family import load_family
from workers.runners.torch_runner import TorchRunner
from workers.settings import BadSettings, TalkerSettings
from workers.talker.frames import FrameHistory

pytest.importorskip("vllm", reason="vLLM is not installed")
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

FAMILY = load_family(MODEL)
JOBS = 4
POSITIONS = 128
CHUNK = 8
BLOCK = 32  # positions of the cache


@pytest.fixture(scope="module", params=["v1", "v2"])
def model_runner(request, device):
    if request.param == "v2" and device == "cpu":
        pytest.skip("Model Runner V2 is for GPUs")
    return request.param


@pytest.fixture(scope="module")
def engine(device, model_runner):
    """Starts an engine with so many blocks; the one before it ends."""
    from workers.runners.vllm_runner import VllmRunner

    torch.set_num_threads(1)
    running = {}

    def start(num_gpu_blocks: int | None = None) -> VllmRunner:
        if num_gpu_blocks not in running:
            for other in running.values():
                other.close()
            running.clear()
            options = {"device": device, "dtype": "float32" if device == "cpu" else "bfloat16"}
            settings = TalkerSettings(
                model_runner=model_runner, max_jobs=JOBS, max_model_len=POSITIONS, prefill_chunk=CHUNK,
                gpu_memory_utilization=0.1, num_gpu_blocks=num_gpu_blocks, options=options,
            )  # fmt: skip
            running[num_gpu_blocks] = VllmRunner(FAMILY, tiny_checkpoint(MODEL), settings)
        return running[num_gpu_blocks]

    yield start
    for runner in running.values():
        runner.close()


@pytest.fixture
def runner(engine):
    return engine()


@pytest.fixture(scope="module")
def alone(engine):
    """Utterances as they are when nobody else speaks; of each of the ways that there are to draw."""
    runner = engine()
    return {seed: sung(finish(runner, admit(runner, runner.model, utterance(seed)))) for seed in range(4)}


def test_the_codes_of_the_torch_runner(device, alone):
    if device != "cpu":
        pytest.skip("in bfloat16 two runners round differently")
    talker = FAMILY.talker(tiny_checkpoint(MODEL), {"max_jobs": JOBS}, None)
    torch_runner = TorchRunner(talker, max_jobs=JOBS, max_model_len=POSITIONS, prefill_chunk=CHUNK)
    together = [admit(torch_runner, talker, utterance(seed)) for seed in alone]
    assert [sung(finish(torch_runner, history)) for history in together] == list(alone.values())


@pytest.mark.parametrize("draws", [1, 2, 9, 17])
def test_the_same_codes_after_a_preemption(runner, alone, draws):
    """Of a text that is spread over the frames, drawn with a penalty on what was drawn, beside another."""
    for seed in (2, 3):
        beside = admit(runner, runner.model, utterance(1))
        history = admit(runner, runner.model, utterance(seed))
        while history.draw < draws:
            runner.step()
        scheduler = runner._core.scheduler
        scheduler._preempt(scheduler._jobs[history.job])
        assert [sung(finish(runner, each)) for each in (history, beside)] == [alone[seed], alone[1]]


@pytest.mark.parametrize("draws", [1, 9])
def test_a_passage_has_its_context_after_a_preemption_too(device, runner, draws):
    """And the codes of the torch runner: what it goes on from is part of its prompt."""

    def passage() -> FrameHistory:
        history = utterance(3, job="passage", input=TEXT * 2, frames=20)
        history.context = np.random.default_rng(1).integers(0, 2048, (30, 16), dtype=np.int16)
        return history

    alone = sung(finish(runner, admit(runner, runner.model, passage())))
    history, beside = (admit(runner, runner.model, each) for each in (passage(), utterance(1)))
    while history.draw < draws:
        runner.step()
        assert history.reason is None
    scheduler = runner._core.scheduler
    scheduler._preempt(scheduler._jobs[history.job])
    assert sung(finish(runner, history)) == alone
    finish(runner, beside)
    anew = utterance(3, job="anew", input=TEXT * 2, frames=20)
    assert sung(finish(runner, admit(runner, runner.model, anew))) != alone
    if device == "cpu":
        talker = FAMILY.talker(tiny_checkpoint(MODEL), {"max_jobs": JOBS}, None)
        torch_runner = TorchRunner(talker, max_jobs=JOBS, max_model_len=POSITIONS, prefill_chunk=CHUNK)
        assert sung(finish(torch_runner, admit(torch_runner, talker, passage()))) == alone


def test_the_same_codes_where_memory_is_short(engine):
    """Utterances lose their memory to older ones, and come back to the same codes."""
    asked = [{"seed": seed, "input": TEXT * 2, "do_sample": True, "frames": 50} for seed in (2, 3, 4, 7)]
    runner = engine()
    expected = [sung(finish(runner, admit(runner, runner.model, utterance(**each)))) for each in asked]
    preempted = 0
    for blocks in (6, 8):  # the longest would take 4 at most; one is the engine's own
        runner = engine(blocks)
        together = [admit(runner, runner.model, utterance(**each)) for each in asked]
        assert [sung(finish(runner, history)) for history in together] == expected
        assert runner._core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == blocks - 1
        preempted += runner.preemptions
    assert preempted > 0


def test_a_cache_too_small_for_one_utterance_is_refused_with_the_number_that_would_do(engine):
    with pytest.raises(BadSettings, match=f"needs {POSITIONS // BLOCK}: give the talker more memory"):
        engine(POSITIONS // BLOCK)


def test_the_end_of_the_positions_ends_the_utterance(runner):
    """The frames that there are are delivered, and the reason says so."""
    history = utterance(2, job="long", frames=400)
    prompt = len(runner.model.prompts(history.request)[0])
    finish(runner, admit(runner, runner.model, history))
    assert history.reason == "stop" or (history.reason, history.frames) == ("length", POSITIONS - prompt)


def test_a_repeated_code_is_taken_even_where_it_would_not_be_drawn(runner):
    forced = np.full((5, 16), 1000, np.int16)
    history = finish(runner, admit(runner, runner.model, utterance(3, job="forced", forced=forced)))
    assert np.array_equal(codes(history)[:5], forced)
