"""vLLM as the talker's engine: the codes of the torch runner, and bits that depend on the song alone."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from tests.songs import admit, arrays, come_and_go, finish, song, sung
from tests.tiny_checkpoint import tiny_checkpoint
from workers.models.family import load_family
from workers.runners.torch_runner import TorchRunner
from workers.settings import BadSettings, TalkerSettings
from workers.talker.rows import DoesNotFit

pytest.importorskip("vllm", reason="vLLM is not installed")
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

FAMILY = load_family("minimax_music3")
JOBS = 8
CHUNK = 32


@pytest.fixture(scope="module", params=["v1", "v2"])
def model_runner(request, device):
    if request.param == "v2" and device == "cpu":
        pytest.skip("Model Runner V2 is for GPUs")
    return request.param


def settings(device: str, model_runner: str, **overrides) -> TalkerSettings:
    options = {"device": device, "dtype": "float32" if device == "cpu" else "bfloat16"}
    given = {
        "model_runner": model_runner, "max_jobs": JOBS, "max_model_len": 512, "prefill_chunk": CHUNK,
        "options": options,
        "gpu_memory_utilization": 0.1, "compile_draw": device != "cpu",
    }  # fmt: skip
    return TalkerSettings(**given | overrides)


@pytest.fixture(scope="module")
def engine(device, model_runner):
    """Starts an engine with these settings; the one before it ends."""
    from workers.runners.vllm_runner import VllmRunner

    torch.set_num_threads(1)
    running = {}

    def start(**overrides) -> VllmRunner:
        key = repr(overrides)
        if key not in running:
            for other in running.values():
                other.close()
            running.clear()
            running[key] = VllmRunner(FAMILY, tiny_checkpoint(), settings(device, model_runner, **overrides))
        return running[key]

    yield start
    for runner in running.values():
        runner.close()


@pytest.fixture
def runner(engine):
    return engine()


@pytest.fixture(scope="module")
def alone(engine):
    """Every song as it is when nobody else sings."""
    runner = engine()
    return {seed: sung(finish(runner, admit(runner, runner.model, song(seed)))) for seed in range(20)}


@pytest.fixture(scope="module")
def reference(device):
    """The songs on the torch runner."""
    talker = FAMILY.talker(tiny_checkpoint(), {"device": device, "dtype": "float32"}, None)
    runner = TorchRunner(talker, max_jobs=JOBS, max_model_len=512, prefill_chunk=CHUNK)
    return {seed: sung(finish(runner, admit(runner, talker, song(seed)))) for seed in range(20)}


def test_the_codes_of_the_torch_runner_alone(device, alone, reference):
    if device != "cpu":
        pytest.skip("in bfloat16 two runners round differently")
    for seed, (codes, conditioning, reason) in alone.items():
        assert (codes, reason) == (reference[seed][0], reference[seed][2])
        ours, theirs = (np.frombuffer(c, np.float32) for c in (conditioning, reference[seed][1]))
        assert np.abs(ours - theirs).max() < 1e-4 * np.sqrt(np.mean(theirs**2))


def test_the_same_bits_eight_at_once(runner, alone):
    for first in (0, 8):
        seeds = range(first, first + 8)
        songs = [admit(runner, runner.model, song(seed)) for seed in reversed(seeds)]
        for history in songs:
            finish(runner, history)
        assert [sung(history) for history in songs] == [alone[seed] for seed in reversed(seeds)]


def test_a_decode_step_has_one_shape_whoever_is_there(device, runner):
    if device != "cpu":
        pytest.skip("there a CUDA graph has the shape")
    [model] = runner._core.model_executor.collective_rpc(lambda worker: worker.get_model())
    tokens: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: tokens.append(len(kwargs["positions"])), with_kwargs=True
    )  # fmt: skip
    try:
        for seeds in (range(1), range(5)):
            songs = [admit(runner, runner.model, song(seed, frames=6)) for seed in seeds]
            while any(not history.codes for history in songs):
                runner.step()
            tokens.clear()
            for history in songs:
                finish(runner, history)
            assert set(tokens) == {2 * JOBS}
    finally:
        hook.remove()


def test_four_of_one_kind_at_once(runner, alone):
    songs = [admit(runner, runner.model, song(3, job=f"twin_{n}")) for n in range(4)]
    assert {sung(finish(runner, history)) for history in songs} == {alone[3]}


def test_songs_that_come_and_go(runner, alone):
    """Passers-by take slots and leave in the middle, prefilling or singing."""
    come_and_go(runner, song, alone, seed=7)
    assert runner.free_jobs == JOBS


@pytest.mark.parametrize("seed", [3, 6])
def test_a_takeover_repeats_the_log_and_goes_on(runner, alone, seed):
    codes, conditioning = arrays(alone[seed])
    rng = random.Random(seed)
    for _ in range(3):
        cut = rng.randrange(1, len(codes) + 1)
        sent = rng.randrange(cut)
        company = admit(runner, runner.model, song(90 + seed))
        for _ in range(rng.randrange(12)):
            runner.step()
        taken = song(seed, job=f"taken_{cut}", forced=codes[:cut], sent=sent)
        history = finish(runner, admit(runner, runner.model, taken))
        assert np.array_equal(np.stack(history.codes), codes)
        assert np.stack(history.waiting).tobytes() == conditioning[sent:].tobytes()
        assert history.reason == alone[seed][2]
        runner.free(company.job)


def test_the_same_bits_in_a_thread_that_computes_with_others(runner, alone):
    """How many compute is set for each thread anew, and an engine is stepped in another one than it began in."""

    def sing() -> tuple:
        torch.set_num_threads(2)
        return sung(finish(runner, admit(runner, runner.model, song(5))))

    with ThreadPoolExecutor(1) as elsewhere:
        assert elsewhere.submit(sing).result() == alone[5]
    torch.set_num_threads(1)


def test_a_repeated_code_is_taken_even_where_it_would_not_be_drawn(runner):
    forced = np.full((5, 8), 1000, np.int16)
    history = finish(runner, admit(runner, runner.model, song(3, job="forced", forced=forced)))
    assert np.array_equal(np.stack(history.codes[:5]), forced)


def test_the_end_of_the_positions_ends_the_song(runner):
    """The frames that exist are delivered, and the reason says so."""
    history = song(0, job="long", frames=9000)
    prompt = len(runner.model.prompts(history.request)[0])
    finish(runner, admit(runner, runner.model, history))
    assert history.reason == "stop" or (history.reason, history.frames) == ("length", 512 - prompt - 1)


def test_a_prompt_that_leaves_no_room_is_refused(runner):
    history = song(0, job="wide")
    with pytest.raises(DoesNotFit, match="max_model_len is 512"):
        runner.admit(history, [[1] * 511, [1] * 511])
    assert runner.idle


def test_prompts_of_two_lengths_are_refused(runner):
    with pytest.raises(ValueError, match="one length"):
        runner.admit(song(0, job="odd"), [[1, 2], [1]])
    assert runner.idle


@pytest.mark.parametrize("draws", [1, 2, 8, 9, 17, 23])
@pytest.mark.parametrize("seed", [3, 6, 7])
def test_the_same_bits_after_a_preemption(runner, alone, seed, draws):
    """Wherever it comes: the song's frames are computed again in chunks, and what is left over one by one."""
    history = admit(runner, runner.model, song(seed))
    while history.draw < draws:
        runner.step()
    scheduler = runner._core.scheduler
    scheduler._preempt(scheduler._jobs[history.job])
    finish(runner, history)
    where = [first_difference(*pair) for pair in zip(arrays(sung(history)), arrays(alone[seed]), strict=True)]
    assert where == [None, None], f"(draw, frame) from which on it differs, preempted after {draws}: {where}"
    assert history.reason == alone[seed][2]


def first_difference(ours: np.ndarray, theirs: np.ndarray) -> int | None:
    shared = min(len(ours), len(theirs))
    differing = np.flatnonzero((ours[:shared] != theirs[:shared]).any(axis=1))
    if len(differing):
        return int(differing[0])
    return shared if len(ours) != len(theirs) else None


def test_the_same_bits_where_memory_is_short(engine):
    """Songs lose their memory to older ones, whole pairs at a time, and come back to the same bits."""
    seeds = (7, 15, 6, 14, 5, 13, 4, 12)
    runner = engine()
    alone = [sung(finish(runner, admit(runner, runner.model, song(seed, frames=120)))) for seed in seeds]
    preemptions = []
    for blocks in (34, 45, 60):
        runner = engine(num_gpu_blocks=blocks)
        songs = [admit(runner, runner.model, song(seed, frames=120)) for seed in seeds]
        for history in songs:
            finish(runner, history)
        assert [sung(history) for history in songs] == alone
        preemptions.append(runner.preemptions)
    assert sum(preemptions) > 0, preemptions


def test_a_cache_too_small_for_one_song_is_refused_with_the_number_that_would_do(engine):
    with pytest.raises(BadSettings, match="needs 32: give the talker more memory"):
        engine(num_gpu_blocks=20)


@pytest.mark.parametrize("compilation", [{"cudagraph_mode": "NONE"}, {"cudagraph_capture_sizes": [1, 2, 4, 8, 16]}])
def test_decodes_of_many_shapes_are_refused(device, engine, compilation):
    if device == "cpu":
        pytest.skip("there is no graph; the runner pads the steps itself")
    with pytest.raises(BadSettings, match=r"of the one size 16\. Leave both out"):
        engine(compilation=compilation)
