"""The solver's starting noise: a pure function of the seed and the window.

Element (c, l) is a standard normal by Box-Muller, from two hashes of the draw's MurmurHash3 over five 32-bit blocks:
seed low, seed high, "dit", window, and 2 x (l x channels + c) or the number after it. Draws hash four blocks, so the
two never meet. A window's noise does not depend on its length: a shorter one has the first latents of a longer one.
"""

from __future__ import annotations

import numpy as np
import torch

from workers.talker.sampling import murmur3

_STAGE = int.from_bytes(b"dit", "little")


def solver_noise(seed: int, window: int, channels: int, latents: int) -> np.ndarray:
    """(channels, latents) float32 standard normals; 0 <= seed < 2**63."""
    counter = 2 * torch.arange(latents * channels, dtype=torch.int64)
    radius_hash, angle_hash = (
        murmur3(seed, seed >> 32, _STAGE, window, counter + part).numpy().astype(np.float64) for part in (0, 1)
    )
    radius = np.sqrt(-2.0 * np.log((radius_hash + 1.0) / 2.0**32))  # the logarithm's argument is in (0, 1]
    normals = radius * np.cos(2.0 * np.pi * angle_hash / 2.0**32)
    return np.ascontiguousarray(normals.reshape(latents, channels).T, dtype=np.float32)
