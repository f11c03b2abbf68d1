"""MiniMax-Music3's acoustic stage: the same bytes whatever ran before, and state that can be stored and taken up."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

from broker_schemas.codec import Tensor, pack, unpack
from tests.tiny_checkpoint import tiny_checkpoint
from workers.models.family import Dropped
from workers.models.minimax_music3 import config
from workers.models.minimax_music3.acoustic import (
    MusicAcoustic,
    Overlap,
    for_whole_windows,
    load_acoustic,
    load_module,
    with_compiled_blocks,
)
from workers.models.minimax_music3.noise import solver_noise
from workers.models.minimax_music3.resampler import resample, resampled_length

STEPS = 3  # enough to tell windows apart, and quick


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def acoustic(device) -> MusicAcoustic:
    return load_acoustic(tiny_checkpoint(), {"solver_steps": STEPS, "device": device})


def conditioning(frames: int, seed: int = 0) -> np.ndarray:
    return (0.2 * np.random.default_rng(seed).standard_normal((frames, 64))).astype(np.float32)


def never() -> None:
    pass


def window(acoustic: MusicAcoustic, song: np.ndarray, index: int, state: dict, seed: int = 5):
    start, end = config.PLAN.bounds(index, len(song))
    return acoustic.window(song[start:end], index=index, last=end == len(song), seed=seed, state=state, check=never)


def play(acoustic: MusicAcoustic, song: np.ndarray, between: Callable[[dict], dict] = lambda state: state) -> bytes:
    state, pcm = {}, []
    for index in range(config.PLAN.count(len(song))):
        samples, state = window(acoustic, song, index, state)
        assert samples.dtype == np.int16
        assert samples.shape[1] == 2
        pcm.append(samples)
        state = between(state)
    return np.concatenate(pcm).tobytes()


def stored(state: dict) -> dict:
    """A state as it comes back from the broker."""
    unpacked = unpack(pack(state))
    return {name: value.numpy() if isinstance(value, Tensor) else value for name, value in unpacked.items()}


def test_stored_state_gives_the_same_bytes(acoustic) -> None:
    song = conditioning(310)
    assert play(acoustic, song, stored) == play(acoustic, song)


def test_other_songs_in_between_change_nothing(acoustic) -> None:
    song, other = conditioning(210), conditioning(57, seed=1)

    def distracted(state: dict) -> dict:
        play(acoustic, other)
        torch.manual_seed(99)
        torch.rand(7)
        return state

    assert play(acoustic, song, distracted) == play(acoustic, song)


def test_a_second_model_gives_the_same_bytes(acoustic, device) -> None:
    again = load_acoustic(tiny_checkpoint(), {"solver_steps": STEPS, "device": device})
    song = conditioning(250)
    assert play(again, song) == play(acoustic, song)


def test_a_window_done_again_gives_the_same_bytes_and_leaves_its_state(acoustic) -> None:
    song = conditioning(310)
    _, state = window(acoustic, song, 0, {})
    before = pack(state)
    first, first_state = window(acoustic, song, 1, state)
    second, second_state = window(acoustic, song, 1, state)
    assert first.tobytes() == second.tobytes()
    assert pack(first_state) == pack(second_state)
    assert pack(state) == before


def test_the_input_is_not_written_to(acoustic) -> None:
    song = conditioning(250)
    song.flags.writeable = False
    play(acoustic, song)


def test_whole_song_resampled_at_once_is_the_windows_resampled_one_by_one(acoustic) -> None:
    song = conditioning(310)
    waveforms, previous = [], None
    with torch.inference_mode():
        for index in range(config.PLAN.count(len(song))):
            start, end = config.PLAN.bounds(index, len(song))
            condition = acoustic.condition(song[start:end], previous)
            noise = torch.from_numpy(solver_noise(5, index, acoustic.latent_channels, condition.shape[1]))[None]
            noise = noise.to(condition.device)
            latents = acoustic.solve(condition, noise, previous, never)
            waveforms.append(acoustic.waveform(latents, first=index == 0, last=end == len(song)))
            previous = acoustic.overlap(latents, condition)
    whole, _ = resample(torch.cat(waveforms, dim=1), {}, last=True)
    samples = whole.T.contiguous().cpu().numpy()
    assert np.rint(samples * 32_767).clip(-32_768, 32_767).astype(np.int16).tobytes() == play(acoustic, song)


@pytest.mark.parametrize("frames", [1, 57, 199, 200, 201, 250, 300, 301])
def test_length(frames: int, acoustic) -> None:
    latents = 0
    for index in range(config.PLAN.count(frames)):
        start, end = config.PLAN.bounds(index, frames)
        latents += config.latent_length(end - start)
        latents -= config.CROP_LEFT_LATENTS * (index > 0) + config.CROP_RIGHT_LATENTS * (end < frames)
    assert len(play(acoustic, conditioning(frames))) == resampled_length(latents * 512) * 2 * 2


def test_seed_and_window_change_the_sound(acoustic) -> None:
    song = conditioning(57)
    one, _ = window(acoustic, song, 0, {}, seed=1)
    two, _ = window(acoustic, song, 0, {}, seed=2)
    assert np.abs(one.astype(int) - two).mean() > 100


def test_overlaps_join_without_a_step(acoustic) -> None:
    """Where one window's sound ends and the next begins, the signal moves no more than elsewhere."""
    song = conditioning(300)
    first, state = window(acoustic, song, 0, {})
    second, _ = window(acoustic, song, 1, state)
    joined = np.concatenate((first, second)).astype(float)
    steps = np.abs(np.diff(joined, axis=0)).max(axis=1)
    assert steps[len(first) - 12 : len(first) + 12].max() <= np.quantile(steps, 0.9999)


@pytest.mark.parametrize("frames", [57, 200])
@pytest.mark.parametrize("step", range(STEPS))
def test_dropped_between_any_two_steps(step: int, frames: int, acoustic) -> None:
    asked = 0

    def check() -> None:
        nonlocal asked
        asked += 1
        if asked > step:
            raise Dropped

    song = conditioning(frames)
    before = window(acoustic, song, 0, {})[0]
    with pytest.raises(Dropped):
        acoustic.window(song, index=0, last=True, seed=6, state={}, check=check)
    assert asked == step + 1
    assert before.tobytes() == window(acoustic, song, 0, {})[0].tobytes()


@torch.inference_mode()
@pytest.mark.parametrize("frames", [57, 200])
def test_solver_is_plain_euler_steps(frames: int, acoustic, device) -> None:
    """One row at a time here, where the solver has both in one batch."""
    transformer = load_module(tiny_checkpoint(), config.TRANSFORMER, torch.device(device), torch.float32)
    condition = acoustic.condition(conditioning(frames), None)
    noise = torch.from_numpy(solver_noise(5, 0, acoustic.latent_channels, condition.shape[1]))[None].to(device)
    held = Overlap(0.3 * noise.flip(-1)[..., :40], condition[:, :40])
    latents = noise.clone()
    for step in range(STEPS):
        now, then = (torch.tensor(number / STEPS, device=device) for number in (step, step + 1))
        latents[..., :40] = (1.0 - (1.0 - 1e-6) * now) * noise[..., :40] + now * held.latents
        guided, plain = (
            transformer(latents, now.expand(1), encoding, return_dict=False)[0]
            for encoding in (condition, torch.zeros_like(condition))
        )
        latents = latents + (then - now) * (plain + 1.7 * (guided - plain))
    latents[..., :40] = held.latents
    near = 1e-4 if device == "cpu" else 1e-3  # there, a batch of two rows has another order of sums
    torch.testing.assert_close(acoustic.solve(condition, noise, held, never), latents, rtol=near, atol=near)


@torch.inference_mode()
def test_graph_and_calls_one_by_one_give_the_same_bytes(acoustic, device) -> None:
    if device == "cpu":
        pytest.skip("graphs are CUDA's: run with --device cuda")
    plain = load_acoustic(tiny_checkpoint(), {"solver_steps": STEPS, "device": device, "cuda_graph": False})
    for frames in (57, 200, 310, 430):
        assert play(plain, conditioning(frames)) == play(acoustic, conditioning(frames))


@torch.inference_mode()
def test_a_graph_runs_beside_other_work_with_the_same_bytes(acoustic, device) -> None:
    if device == "cpu":
        pytest.skip("graphs are CUDA's: run with --device cuda")
    song, stop = conditioning(430), threading.Event()
    alone = play(acoustic, song)

    def busy() -> None:
        left = torch.randn(2048, 2048, device=device)
        while not stop.is_set():
            (left @ left).sum().item()

    other = threading.Thread(target=busy)
    other.start()
    try:
        assert play(acoustic, song) == alone
        again = load_acoustic(tiny_checkpoint(), {"solver_steps": STEPS, "device": device})  # captured meanwhile
        assert play(again, song) == alone
    finally:
        stop.set()
        other.join()


def test_a_graph_outlives_what_diffusers_forgets(acoustic, device) -> None:
    """Songs end at any length, and diffusers remembers the rotary tables of 32."""
    if device == "cpu":
        pytest.skip("graphs are CUDA's: run with --device cuda")
    before = play(acoustic, conditioning(310))
    for frames in range(1, 41):
        play(acoustic, conditioning(frames))
    torch.full((1 << 26,), 7.0, device=device)  # whatever was freed is overwritten
    assert play(acoustic, conditioning(310)) == before


def test_whole_windows_hold_their_rotary_tables() -> None:
    transformer = load_module(tiny_checkpoint(), config.TRANSFORMER, torch.device("cpu"), torch.float32)
    cpu, positions = torch.device("cpu"), config.latent_length(config.PLAN.window) + 1
    whole = for_whole_windows(transformer, cpu)
    held = whole.rotary_emb(positions, cpu)
    for length in range(1, 41):
        transformer.rotary_emb(length, cpu)
    assert all(ours is first for ours, first in zip(whole.rotary_emb(positions, cpu), held, strict=True))
    assert all(
        torch.equal(ours, theirs) for ours, theirs in zip(held, transformer.rotary_emb(positions, cpu), strict=True)
    )


def test_compiled_blocks_share_the_weights_and_leave_the_module_alone() -> None:
    transformer = load_module(tiny_checkpoint(), config.TRANSFORMER, torch.device("cpu"), torch.float32)
    blocks = list(transformer.transformer_blocks)
    compiled = with_compiled_blocks(transformer)
    assert list(transformer.transformer_blocks) == blocks
    assert all(hasattr(block, "_orig_mod") for block in compiled.transformer_blocks)
    pointers = [{tensor.data_ptr() for tensor in module.parameters()} for module in (transformer, compiled)]
    assert pointers[0] == pointers[1]


@torch.inference_mode()
def test_compiled_windows_are_close(acoustic, device) -> None:
    if device == "cpu":
        pytest.skip("compiling takes minutes on a CPU: run with --device cuda")
    compiled = load_acoustic(tiny_checkpoint(), {"solver_steps": STEPS, "device": device, "compile": True})
    song = conditioning(310)
    assert play(compiled, song) == play(compiled, song)
    ours, plain = (np.frombuffer(play(model, song), np.int16).astype(float) for model in (compiled, acoustic))
    assert np.corrcoef(ours, plain)[0, 1] > 0.9999


def test_no_flag_is_left_behind(acoustic) -> None:
    def flags():
        return (
            torch.is_inference_mode_enabled(),
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            torch.is_autocast_enabled("cpu"),
            torch.initial_seed(),
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.conv.fp32_precision,
        )

    before = flags()
    play(acoustic, conditioning(57))
    assert flags() == before


def test_refuses_what_is_not_this_window(acoustic) -> None:
    song = conditioning(250)
    _, state = window(acoustic, song, 0, {})
    with pytest.raises(ValueError, match="needs its predecessor's state"):
        acoustic.window(song[100:], index=1, last=True, seed=0, state={}, check=never)
    with pytest.raises(ValueError, match="needs no state"):
        acoustic.window(song[:200], index=0, last=False, seed=0, state=state, check=never)
    with pytest.raises(ValueError, match="cannot have 150 frames"):
        acoustic.window(song[:150], index=0, last=False, seed=0, state={}, check=never)
    with pytest.raises(ValueError, match="cannot have 201 frames"):
        acoustic.window(song[:201], index=0, last=True, seed=0, state={}, check=never)
    with pytest.raises(ValueError, match="cannot have 0 frames"):
        acoustic.window(song[:0], index=0, last=True, seed=0, state={}, check=never)
    with pytest.raises(ValueError, match=r"must be \(frames, 64\) float32"):
        acoustic.window(song[:, :63], index=0, last=True, seed=0, state={}, check=never)
    with pytest.raises(ValueError, match=r"must be \(frames, 64\) float32"):
        acoustic.window(song.astype(np.float64), index=0, last=True, seed=0, state={}, check=never)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 3}, "unknown acoustic settings: steps"),
        ({"dtype": "int8"}, "dtype must be one of float32, bfloat16"),
        ({"dtype": "tf32"}, "dtype must be one of float32, bfloat16, got 'tf32'"),
        ({"vocoder_dtype": "int8"}, "vocoder_dtype must be one of float32, tf32, bfloat16"),
        ({"vocoder_dtype": "tf32"}, "vocoder_dtype: tf32 is for CUDA, and the device is cpu"),
        ({"cuda_graph": True}, "cuda_graph: true is for CUDA, and the device is cpu"),
        ({"compile": "yes"}, "compile must be true or false, got 'yes'"),
        ({"solver_steps": 0}, "solver_steps must be a whole number from 1"),
        ({"solver_steps": True}, "solver_steps must be a whole number from 1"),
    ],
)
def test_refuses_settings(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_acoustic(tiny_checkpoint(), settings)


@pytest.mark.parametrize("vocoder", ["float32", "bfloat16"])
def test_bfloat16_state_is_exact(vocoder: str, device) -> None:
    rounded = {"dtype": "bfloat16", "vocoder_dtype": vocoder}
    acoustic = load_acoustic(tiny_checkpoint(), {"solver_steps": 2, "device": device, **rounded})
    song = conditioning(250)
    assert play(acoustic, song, stored) == play(acoustic, song)
    exact = load_acoustic(tiny_checkpoint(), {"solver_steps": 2, "device": device})
    rough, fine = (np.frombuffer(play(model, song), np.int16).astype(float) for model in (acoustic, exact))
    assert np.corrcoef(rough, fine)[0, 1] > 0.99


def test_bfloat16_is_the_transformers_alone(device) -> None:
    """Latents are float32 between steps and in the state; of a window's time the transformer sees every bit."""
    acoustic = load_acoustic(tiny_checkpoint(), {"solver_steps": 10, "device": device, "dtype": "bfloat16"})
    _, state = window(acoustic, conditioning(250), 0, {})
    latents = torch.from_numpy(state["latents"])
    assert latents.dtype == torch.float32
    assert not torch.equal(latents, latents.bfloat16().float())
    exact = load_acoustic(tiny_checkpoint(), {"solver_steps": 10, "device": device})
    _, fine = window(exact, conditioning(250), 0, {})
    error = np.sqrt(np.mean((state["latents"] - fine["latents"]) ** 2) / np.mean(fine["latents"] ** 2))
    assert 0 < error < 0.02
