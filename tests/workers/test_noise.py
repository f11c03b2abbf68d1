"""The solver's noise: keyed by seed and window, standard normal, the same wherever it is drawn."""

import math

import numpy as np

from workers.models.minimax_music3.noise import solver_noise

MASK = 0xFFFFFFFF


def murmur3_bytes(key: bytes) -> int:
    """MurmurHash3 x86-32 with hash seed 0, over whole blocks, byte by byte as its author wrote it down."""
    state = 0
    for start in range(0, len(key), 4):
        block = int.from_bytes(key[start : start + 4], "little")
        block = block * 0xCC9E2D51 & MASK
        block = (block << 15 | block >> 17) & MASK
        state ^= block * 0x1B873593 & MASK
        state = (state << 13 | state >> 19) & MASK
        state = (state * 5 + 0xE6546B64) & MASK
    state ^= len(key)
    state = (state ^ state >> 16) * 0x85EBCA6B & MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & MASK
    return state ^ state >> 16


def normal(seed: int, window: int, element: int) -> float:
    key = seed.to_bytes(8, "little") + b"dit\0" + window.to_bytes(4, "little")
    radius, angle = (murmur3_bytes(key + (2 * element + part).to_bytes(4, "little")) for part in (0, 1))
    return math.sqrt(-2 * math.log((radius + 1) / 2**32)) * math.cos(2 * math.pi * angle / 2**32)


def test_keying() -> None:
    for seed, window in ((0, 0), (7, 3), (2**63 - 1, 88), (2**32, 1)):
        drawn = solver_noise(seed, window, channels=3, latents=5)
        expected = [[normal(seed, window, latent * 3 + channel) for latent in range(5)] for channel in range(3)]
        np.testing.assert_allclose(drawn, expected, rtol=1e-6)


def test_is_standard_normal() -> None:
    drawn = solver_noise(1, 0, 128, 689).astype(np.float64)
    assert drawn.shape == (128, 689)
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.std() - 1) < 0.01
    assert abs((drawn**3).mean()) < 0.03
    assert abs((drawn**4).mean() - 3) < 0.1
    assert abs(np.corrcoef(drawn[0], drawn[1])[0, 1]) < 0.12
    assert abs(np.corrcoef(drawn[0, 1:], drawn[0, :-1])[0, 1]) < 0.12


def test_seeds_and_windows_differ() -> None:
    drawn = [solver_noise(seed, window, 16, 100) for seed in (0, 1, 2**40) for window in (0, 1, 2)]
    for number, one in enumerate(drawn):
        for other in drawn[number + 1 :]:
            assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.1


def test_a_shorter_window_has_the_first_latents() -> None:
    assert np.array_equal(solver_noise(5, 2, 16, 344), solver_noise(5, 2, 16, 689)[:, :344])


def test_is_float32_in_order() -> None:
    drawn = solver_noise(5, 2, 16, 10)
    assert drawn.dtype == np.float32
    assert drawn.flags.c_contiguous
