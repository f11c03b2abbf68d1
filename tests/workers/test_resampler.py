"""The resampler: torchaudio's kernel, and bytes that do not depend on how the stream is cut."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from workers.models.minimax_music3 import resampler
from workers.models.minimax_music3.config import (
    CROP_LEFT_LATENTS,
    CROP_RIGHT_LATENTS,
    LATENT_SAMPLES,
    PLAN,
    SAMPLE_RATE,
    latent_length,
)
from workers.models.minimax_music3.resampler import polyphase_taps, resampled_length

WHOLE = 5_000


def resample(samples: np.ndarray, state: dict, *, last: bool) -> tuple[np.ndarray, dict]:
    """As the resampler's, with (n, channels) arrays."""
    whole, state = resampler.resample(torch.from_numpy(samples.T.copy()), state, last=last)
    return whole.T.numpy(), state


def noise(samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((samples, 2)).astype(np.float32)


def in_pieces(samples: np.ndarray, cuts: list[int]) -> bytes:
    state, pieces = {}, []
    bounds = [0, *sorted(cuts), len(samples)]
    for number, (start, end) in enumerate(pairwise(bounds)):
        piece, state = resample(samples[start:end], state, last=number == len(bounds) - 2)
        pieces.append(piece)
    return np.concatenate(pieces).tobytes()


def by_formula(samples: np.ndarray, output: int) -> np.ndarray:
    """One output sample, summed over the whole input with the continuous kernel."""
    cutoff = 320 * 0.99
    total = np.zeros(samples.shape[1])
    centre = output * 441 / 320
    for position in range(max(0, int(centre) - 20), min(len(samples), int(centre) + 20)):
        crossings = max(-6.0, min(6.0, (position / 441 - output / 320) * cutoff))
        window = math.cos(crossings * math.pi / 12) ** 2
        angle = crossings * math.pi
        sinc = 1.0 if angle == 0 else math.sin(angle) / angle
        total += samples[position].astype(np.float64) * (sinc * window * cutoff / 441)
    return total


def test_matches_the_formula() -> None:
    samples = noise(WHOLE)
    whole, _ = resample(samples, {}, last=True)
    outputs = [*range(12), 319, 320, 321, 1000, 2222, *range(len(whole) - 12, len(whole))]
    expected = np.array([by_formula(samples, output) for output in outputs])
    np.testing.assert_allclose(whole[outputs], expected, rtol=0, atol=1e-12)


def test_matches_a_strided_convolution() -> None:
    """The way torchaudio lays it out: 320 kernels of 459 taps, one stride of 441 for each 320 outputs."""
    width, cutoff = math.ceil(6 * 441 / (320 * 0.99)), 320 * 0.99
    crossings = (np.arange(-width, width + 441) / 441 - np.arange(320)[:, None] / 320) * cutoff
    crossings = crossings.clip(-6, 6)
    kernels = np.sinc(crossings) * np.cos(crossings * np.pi / 12) ** 2 * cutoff / 441
    samples = noise(WHOLE)
    padded = np.pad(samples.astype(np.float64), ((width, width + 441), (0, 0)))
    blocks = np.lib.stride_tricks.sliding_window_view(padded, 441 + 2 * width, axis=0)[::441]
    expected = np.einsum("bct,pt->bpc", blocks, kernels).reshape(-1, 2)[: -(-WHOLE * 320 // 441)]
    whole, _ = resample(samples, {}, last=True)
    np.testing.assert_allclose(whole, expected, rtol=0, atol=1e-12)


def test_any_cut_gives_the_same_bytes() -> None:
    samples = noise(WHOLE)
    whole = in_pieces(samples, [])
    rng = np.random.default_rng(1)
    for cuts in ([1], [8], [9], [10], [441], [WHOLE - 1], [WHOLE], [0, 0], list(range(0, WHOLE, 97))):
        assert in_pieces(samples, cuts) == whole, cuts
    for _ in range(20):
        cuts = rng.integers(0, WHOLE + 1, rng.integers(1, 9)).tolist()
        assert in_pieces(samples, cuts) == whole, cuts


def test_sample_by_sample_gives_the_same_bytes() -> None:
    samples = noise(60)
    assert in_pieces(samples, list(range(60))) == in_pieces(samples, [])


def test_state_is_small_and_not_changed() -> None:
    _, state = resample(noise(WHOLE), {}, last=False)
    before = state["tail"].copy()
    first, _ = resample(noise(100, 1), state, last=True)
    again, _ = resample(noise(100, 1), state, last=True)
    assert first.tobytes() == again.tobytes()
    assert np.array_equal(before, state["tail"])
    assert len(state["tail"]) < 40


@pytest.mark.parametrize("samples", [0, 1, 2, 440, 441, 442, 882, 10_007])
def test_length(samples: int) -> None:
    whole, _ = resample(noise(samples), {}, last=True)
    assert len(whole) == resampled_length(samples) == math.ceil(samples * 320 / 441)


def test_passes_low_tones_and_stops_high_ones() -> None:
    time = np.arange(44_100) / 44_100
    middle = slice(1_000, 31_000)
    low, _ = resample(np.sin(2 * np.pi * 1_000 * time)[:, None].astype(np.float32), {}, last=True)
    high, _ = resample(np.sin(2 * np.pi * 20_500 * time)[:, None].astype(np.float32), {}, last=True)
    expected = np.sin(2 * np.pi * 1_000 * np.arange(32_000) / 32_000)[:, None]
    assert np.abs(low - expected)[middle].max() < 2e-3
    assert np.abs(high)[middle].max() < 0.02


def test_every_phase_keeps_the_level() -> None:
    taps = polyphase_taps()
    assert taps.shape == (320, 18)
    assert np.abs(taps.sum(axis=1) - 1).max() < 0.01


def test_a_full_length_song_lasts_360_478_seconds() -> None:
    frames, latents = 9_000, 0
    for index in range(PLAN.count(frames)):
        start, end = PLAN.bounds(index, frames)
        latents += latent_length(end - start)
        latents -= CROP_LEFT_LATENTS if index > 0 else 0
        latents -= CROP_RIGHT_LATENTS if end < frames else 0
    seconds = resampled_length(latents * LATENT_SAMPLES) / SAMPLE_RATE
    assert round(seconds, 3) == 360.478
