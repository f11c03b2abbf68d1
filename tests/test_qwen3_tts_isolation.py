"""Nobody hears anybody else (rule 3): utterances that share a runner have the codes that they have alone."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.songs import admit, finish, sung
from tests.tiny_checkpoint import tiny_checkpoint
from tests.utterances import FRAMES, MODEL, POSITIONS, TEXT, WAYS, codes, utterance
from workers import run
from workers.run import LoadedTalker
from workers.settings import load
from workers.talker.frames import FrameHistory

pytestmark = pytest.mark.timeout(600)

JOBS = 4
CHUNK = 8  # of a prompt's 10 to 36 tokens


@pytest.fixture(scope="module", params=["torch", pytest.param("v1", marks=pytest.mark.vllm)])
def loaded(request, device) -> LoadedTalker:
    torch.set_num_threads(1)
    in_half = device != "cpu" and request.param != "torch"
    talker = {
        "model_runner": request.param, "max_jobs": JOBS, "max_model_len": POSITIONS, "prefill_chunk": CHUNK,
        "options": {"device": device, "dtype": "bfloat16" if in_half else "float32"}, "gpu_memory_utilization": 0.1,
    }  # fmt: skip
    loaded = run.load_talker(load(MODEL, tiny_checkpoint(MODEL), overrides={"talker": talker}))
    yield loaded
    if request.param != "torch":
        loaded.runner.close()


@pytest.fixture
def runner(loaded):
    yield loaded.runner
    assert loaded.runner.idle and loaded.runner.free_jobs == JOBS


@pytest.fixture
def begin(loaded) -> Callable[..., FrameHistory]:
    return lambda *args, **asked: admit(loaded.runner, loaded.model, utterance(*args, **asked))


@pytest.fixture(scope="module")
def alone(loaded) -> Callable[..., tuple]:
    """What an utterance is when nobody else speaks."""
    heard = {}

    def speak(seed: int, **asked) -> tuple:
        key = seed, repr(asked)
        if key not in heard:
            history = admit(loaded.runner, loaded.model, utterance(seed, job="alone", **asked))
            heard[key] = sung(finish(loaded.runner, history))
        return heard[key]

    return speak


def prompt_tokens(loaded: LoadedTalker, history: FrameHistory) -> int:
    return len(loaded.model.prompts(history.request)[0])


def test_prompts_a_token_apart_are_prefilled_and_then_decoded_together(loaded, runner, begin, alone):
    """The shorter one's last chunk is one of 2 tokens, the longer one's of 3; neither hears the other's."""
    asked = [{"input": TEXT}, {"input": TEXT + " Oh"}]
    expected = [alone(0, **each) for each in asked]
    assert expected[0] != expected[1]
    together = [begin(0, job=f"job_{place}", **each) for place, each in enumerate(asked)]
    lengths = [prompt_tokens(loaded, history) for history in together]
    assert lengths[1] == lengths[0] + 1
    assert [sung(finish(runner, history)) for history in together] == expected


def test_one_is_prefilled_while_another_speaks(runner, begin, alone):
    expected = [alone(seed) for seed in (1, 3)]
    speaking = begin(1)
    while speaking.draw < 3:
        runner.step()
    prefilling = begin(3)
    runner.step()
    assert speaking.reason is None and not prefilling.codes
    while not prefilling.codes:
        runner.step()
    assert 3 < speaking.draw < FRAMES
    assert [sung(finish(runner, history)) for history in (speaking, prefilling)] == expected


@pytest.mark.parametrize("draws", [pytest.param(0, id="prefilling"), pytest.param(6, id="speaking")])
def test_a_row_is_taken_again_after_a_cancel(runner, begin, alone, draws):
    """The one that left had a longer prompt, more text to come, and a wilder way of drawing."""
    expected = [alone(seed) for seed in (1, 2)]
    beside = begin(1)
    leaving = begin(
        4, job="leaving", input=TEXT * 4, instructions=TEXT * 8, non_streaming_mode=False, temperature=3.0, top_k=0,
        repetition_penalty=3.0, subtalker_temperature=3.0, subtalker_top_k=0,
    )  # fmt: skip
    runner.step()
    assert not leaving.codes
    while leaving.draw < draws:
        runner.step()
    assert leaving.reason is None and runner.free("leaving") == 1
    taking = begin(2)
    assert [sung(finish(runner, history)) for history in (beside, taking)] == expected


def test_each_is_drawn_in_its_own_way(begin, runner, alone):
    """One text and one seed: only the parameters tell them apart."""
    ways = [{"input": TEXT, **way} for way in WAYS]
    expected = [alone(8, **way) for way in ways]
    assert len(set(expected)) == len(ways)
    together = [begin(8, job=f"job_{place}", **way) for place, way in enumerate(ways)]
    assert [sung(finish(runner, history)) for history in together] == expected


def test_four_of_one_kind(begin, runner, alone):
    together = [begin(1, job=f"twin_{place}") for place in range(JOBS)]
    assert {sung(finish(runner, history)) for history in together} == {alone(1)}


def test_utterances_come_and_go(begin, runner, alone):
    """Passers-by take rows and leave in the middle, prefilling or speaking."""
    expected = {seed: alone(seed) for seed in range(6)}
    moments = random.Random(7)
    waiting, passers = list(expected), iter(range(100, 200))
    speaking: list[FrameHistory] = []
    passing: list[FrameHistory] = []
    while waiting or speaking:
        if waiting and runner.free_jobs and moments.random() < 0.3:
            speaking.append(begin(waiting.pop()))
        if runner.free_jobs > 1 and moments.random() < 0.3:
            passing.append(begin(next(passers)))
        runner.step()
        for history in [history for history in speaking if history.reason]:
            speaking.remove(history)
            assert runner.free(history.job) == 1
            assert sung(history) == expected[history.request.seed]
        for history in [history for history in passing if moments.random() < 0.1]:
            passing.remove(history)
            assert runner.free(history.job) == 1
    for history in passing:
        runner.free(history.job)


@pytest.mark.parametrize(("seed", "known"), [(1, 1), (2, 9), (3, FRAMES)])
def test_a_takeover_repeats_the_log_and_goes_on(begin, runner, alone, seed, known):
    """With the repetition penalty's history and the place in a text that is spread over the frames."""
    expected = alone(seed)
    logged = np.frombuffer(expected[0], np.int16).reshape(-1, 16)
    company = begin(90 + seed)
    for _ in range(seed):
        runner.step()
    taken = finish(runner, begin(seed, job="taken", forced=logged[:known]))
    assert np.array_equal(codes(taken), logged) and taken.reason == expected[2]
    runner.free(company.job)
