"""vLLM on the CPU, prefills beside decodes in a step: every step has one shape, and bits depend on the job alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests import utterances
from tests.songs import admit, come_and_go, finish, song, sung
from tests.tiny_checkpoint import tiny_checkpoint
from workers.models.family import load_family
from workers.settings import TalkerSettings, step_tokens

pytest.importorskip("vllm", reason="vLLM is not installed")
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

JOBS, CHUNK = 6, 16
MAKE = {"minimax_music3": song, "qwen3_tts": utterances.utterance}


@pytest.fixture(scope="module", params=MAKE)
def family(request):
    return load_family(request.param)


@pytest.fixture(scope="module")
def settings(device):
    if device != "cpu":
        pytest.skip("on a GPU such steps are refused, which test_settings.py tests")
    return TalkerSettings(
        model_runner="v1", max_jobs=JOBS, max_model_len=256, prefill_chunk=CHUNK, exclusive_prefill=False,
        options={"device": device, "dtype": "float32"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def runner(family, settings):
    from workers.runners.vllm_runner import VllmRunner

    torch.set_num_threads(1)
    runner = VllmRunner(family, tiny_checkpoint(family.name), settings)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def make(family):
    return MAKE[family.name]


@pytest.fixture(scope="module")
def alone(runner, make):
    """Every job as it is when nobody else is there."""
    return {seed: sung(finish(runner, admit(runner, runner.model, make(seed)))) for seed in range(12)}


def test_the_same_bits_among_comers_and_goers(runner, make, alone):
    """Whose prompts are computed in pieces beside the frames of others, some of them leaving in the middle."""
    come_and_go(runner, make, alone, seed=3)


def test_frames_go_on_while_a_prompt_is_computed(runner, make):
    """In the same steps: nobody waits for another's prompt."""
    first = admit(runner, runner.model, make(1))
    while not first.codes:
        runner.step()
    second, drawn, steps = admit(runner, runner.model, make(7)), first.draw, 0
    while not second.codes:
        runner.step()
        steps += 1
    assert steps > 1 and first.draw - drawn >= steps - 1  # a frame may be on its way
    for history in (first, second):
        finish(runner, history)


@pytest.mark.parametrize("draws", [1, 7, 15])
def test_a_takeover_repeats_the_log_and_goes_on(runner, make, alone, draws):
    """Beside others, whose steps have the known frames in them."""
    codes = np.stack(finish(runner, admit(runner, runner.model, make(2))).codes)
    beside = [admit(runner, runner.model, make(seed)) for seed in (4, 5)]
    runner.step()
    again = admit(runner, runner.model, make(2, job="again", forced=codes[:draws]))
    assert sung(finish(runner, again)) == alone[2]
    for history in beside:
        assert sung(finish(runner, history)) == alone[history.request.seed]


def test_every_step_has_one_shape(family, settings, runner, make):
    [model] = runner._core.model_executor.collective_rpc(lambda worker: worker.get_model())
    tokens: set[int] = set()
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: tokens.add(len(kwargs["positions"])), with_kwargs=True
    )  # fmt: skip
    try:
        for history in [admit(runner, runner.model, make(seed)) for seed in range(3)]:
            finish(runner, history)
    finally:
        hook.remove()
    assert tokens == {step_tokens(settings, family)}
