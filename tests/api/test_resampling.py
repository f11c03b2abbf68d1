"""Raising the sample rate."""

from __future__ import annotations

import numpy as np
import pytest

from api.resampling import Upsampler


def raised(samples: np.ndarray, rate: int, cuts: list[int]) -> np.ndarray:
    upsampler = Upsampler(rate, 48_000, samples.shape[1])
    blocks, at = [], 0
    for cut in cuts:
        blocks.append(upsampler.add(samples[at : at + cut]))
        at += cut
    blocks += [upsampler.add(samples[at:]), upsampler.end()]
    return np.concatenate(blocks)


def tone(hertz: float, rate: int, samples: int) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(samples) / rate)[:, None].astype(np.float32)


@pytest.mark.parametrize("rate", [22_050, 32_000, 44_100])
@pytest.mark.parametrize("hertz", [440, 5_000])
def test_a_tone_stays_the_tone(rate, hertz):
    got = raised(tone(hertz, rate, rate), rate, [])
    assert len(got) == 48_000
    inside = slice(200, -200)  # the ends border on silence
    error = (got - tone(hertz, 48_000, 48_000))[inside]
    assert np.abs(error).max() < 1e-4  # 80 dB down


@pytest.mark.parametrize("samples", [0, 1, 7, 31, 32, 33, 1000])
def test_no_sample_is_lost(samples):
    assert len(raised(np.ones((samples, 2), np.float32), 32_000, [3, 5])) == -(-samples * 3 // 2)


def test_where_it_is_cut_does_not_show():
    sound = np.random.default_rng(0).normal(size=(20_000, 2)).astype(np.float32)
    whole = raised(sound, 32_000, [])
    for cuts in ([1000] * 19, [1, 2, 3, 31, 32, 9000], [0, 15, 0, 16]):
        assert np.array_equal(raised(sound, 32_000, cuts), whole)


def test_lowering_is_refused():
    with pytest.raises(ValueError):
        Upsampler(48_000, 32_000, 2)
