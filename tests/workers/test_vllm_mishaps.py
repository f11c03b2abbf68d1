"""Mishaps around the engine: songs dropped at any moment, names that come back, prompts and logs of odd lengths."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.songs import admit, finish, song, sung
from tests.tiny_checkpoint import tiny_checkpoint
from tests.workers import test_vllm_runner
from tests.workers.test_vllm_runner import CHUNK, FAMILY, JOBS
from workers.runners.torch_runner import TorchRunner
from workers.talker.rows import NoFreeRows

pytest.importorskip("vllm", reason="vLLM is not installed")
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

model_runner, engine = test_vllm_runner.model_runner, test_vllm_runner.engine

FEW_BLOCKS = 34  # one song of 512 positions, with little to spare


@pytest.fixture
def runner(engine):
    return engine()


@pytest.fixture(scope="module")
def torch_runner():
    talker = FAMILY.talker(tiny_checkpoint(), {"dtype": "float32"}, None)
    return TorchRunner(talker, max_jobs=JOBS, max_model_len=512, prefill_chunk=CHUNK)


def free_blocks(runner) -> int:
    return runner._core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def is_clean(runner) -> bool:
    """Nothing is left of any song, on either side of the engine."""
    scheduler = runner._core.scheduler
    left = (scheduler.requests, scheduler.running, scheduler._jobs, list(scheduler.waiting), runner.talker._rows)
    blocks = runner._config.cache_config.num_gpu_blocks - 1
    return runner.idle and runner.free_jobs == JOBS and not any(left) and free_blocks(runner) == blocks


def test_songs_dropped_at_any_moment_under_their_names_again(engine):
    """Memory is short, and names come back in the same step; whoever is let sing to the end has its own bits."""
    runner = engine()
    expected = {seed: sung(finish(runner, admit(runner, runner.model, song(seed, frames=60)))) for seed in range(4)}
    runner = engine(num_gpu_blocks=FEW_BLOCKS)
    rng = random.Random(11)
    singing, ended = {}, 0
    while ended < 16:
        for name in range(JOBS):
            seed, job = rng.randrange(4), f"name_{name}"
            if job in singing and (singing[job].reason or rng.random() < 0.02):
                history = singing.pop(job)
                assert runner.free(job) == 2
                assert runner.free(job) == 0
                if history.reason:
                    ended += 1
                    assert sung(history) == expected[history.request.seed]
            if job not in singing and rng.random() < 0.2:
                forced = np.frombuffer(expected[seed][0], np.int16).reshape(-1, 8)
                forced = forced[: rng.choice([0, 0, 1, 2, len(forced)])]
                singing[job] = admit(runner, runner.model, song(seed, job=job, frames=60, forced=forced))
        runner.step()
    for job in singing:
        runner.free(job)
    assert runner.preemptions > 0
    assert is_clean(runner)


def test_dropped_before_its_first_step(runner):
    for _ in range(3):
        admit(runner, runner.model, song(1, job="early"))
        assert runner.free("early") == 2
        assert is_clean(runner)


def test_one_song_too_many(runner):
    """It is refused, and the songs that are there go on."""
    alone = sung(finish(runner, admit(runner, runner.model, song(2))))
    songs = [admit(runner, runner.model, song(2, job=f"full_{n}")) for n in range(JOBS)]
    with pytest.raises(NoFreeRows):
        admit(runner, runner.model, song(3))
    runner.free(songs.pop().job)
    with pytest.raises(ValueError, match="rows already"):
        admit(runner, runner.model, song(3, job=songs[0].job))
    assert {sung(finish(runner, history)) for history in songs} == {alone}
    assert is_clean(runner)


@pytest.mark.parametrize("tokens", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1])
def test_a_prompt_about_a_chunk_long(runner, torch_runner, tokens):
    prompts = [[1000 + n for n in range(tokens)], [2000 + n for n in range(tokens)]]

    def codes(runner) -> bytes:
        history = song(4, job="prompt", frames=6)
        runner.admit(history, prompts)
        return np.stack(finish(runner, history).codes).tobytes()

    assert codes(runner) == codes(torch_runner)


def test_the_greatest_seed(runner, torch_runner, device):
    if device != "cpu":
        pytest.skip("in bfloat16 two runners round differently")

    def codes(runner, model) -> bytes:
        history = song(5, job="seed")
        history.request = replace(history.request, seed=2**63 - 1)
        return np.stack(finish(runner, admit(runner, model, history)).codes).tobytes()

    assert codes(runner, runner.model) == codes(torch_runner, torch_runner._model)


@pytest.mark.parametrize(("frames", "draws"), [(1, 2), (1, 5), (3, 4), (3, 24)])
def test_a_log_that_is_as_long_as_the_song_or_longer(runner, torch_runner, frames, draws):
    """Nothing is left to be drawn: it ends as if it had been drawn just now."""
    log = np.stack(finish(runner, admit(runner, runner.model, song(2, frames=23))).codes)[:draws]

    def ends(runner, model, sent: int) -> tuple:
        history = finish(runner, admit(runner, model, song(2, job="log", frames=frames, forced=log, sent=sent)))
        return np.stack(history.codes).tobytes(), len(history.waiting), history.reason

    for sent in (0, frames - 1, frames):
        assert ends(runner, runner.model, sent) == ends(torch_runner, torch_runner._model, sent)
    assert is_clean(runner)


def test_what_the_engine_refuses_leaves_nothing_behind(runner, monkeypatch):
    add, calls = runner._client.add_request, []

    def refuse_the_second(request) -> None:
        calls.append(request.request_id)
        if len(calls) == 2:
            raise RuntimeError("no more")
        add(request)

    monkeypatch.setattr(runner._client, "add_request", refuse_the_second)
    with pytest.raises(RuntimeError, match="no more"):
        admit(runner, runner.model, song(1))
    assert is_clean(runner)
