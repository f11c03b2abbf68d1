"""Streaming 44.1 -> 32 kHz resampling, whose bits do not depend on how the stream is cut.

A windowed-sinc polyphase filter with the kernel that torchaudio's `resample` has by default: six zero crossings a side,
a Hann window, the cut-off at 0.99 of the lower Nyquist frequency. Output sample m stands at input position
m x 441 / 320; the fraction has 320 phases, each with its own 18 taps. Every sample is the same sum in the same order,
tap by tap in float64, whatever came with it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

ORIG, NEW = 441, 320  # 44,100 and 32,000 Hz over their greatest common divisor

_ZERO_CROSSINGS = 6
_ROLLOFF = 0.99
_BEFORE = 8  # taps at or before the input sample just left of the output's position, that one not counted
_AFTER = 9
_TAPS = _BEFORE + 1 + _AFTER


def resampled_length(samples: int) -> int:
    """How many output samples a whole stream of `samples` input samples has."""
    return -(-samples * NEW // ORIG)


@cache
def polyphase_taps() -> np.ndarray:
    """(320, 18) float64: for each phase, what the inputs from 8 before to 9 after its left neighbour weigh."""
    cutoff = min(ORIG, NEW) * _ROLLOFF
    phases = np.arange(NEW)
    left = phases * ORIG // NEW
    inputs = left[:, None] + np.arange(-_BEFORE, _AFTER + 1)
    crossings = (inputs / ORIG - phases[:, None] / NEW) * cutoff
    window = np.where(np.abs(crossings) < _ZERO_CROSSINGS, np.cos(crossings * np.pi / _ZERO_CROSSINGS / 2) ** 2, 0.0)
    return np.sinc(crossings) * window * (cutoff / ORIG)


def resample(samples: np.ndarray, state: dict[str, Any], *, last: bool) -> tuple[np.ndarray, dict[str, Any]]:
    """Take the next samples of a stream, give the output samples that they complete.

    Args:
        samples: (n, channels) float32 at 44.1 kHz, n >= 0.
        state: what the previous call returned, maybe among other keys; {} at the start.
        last: whether the stream ends here, and silence follows.

    Returns:
        (m, channels) float64 at 32 kHz, and the state: `tail` (the inputs still needed, float32), `received` and
        `emitted` (sample counts).
    """
    received = state.get("received", 0) + len(samples)
    emitted = state.get("emitted", 0)
    tail = state.get("tail", np.zeros((_BEFORE, samples.shape[1]), np.float32))
    held = np.concatenate((tail, samples.astype(np.float32, copy=False)))
    first = received - len(held)  # the stream position of held[0]
    if last:
        held = np.concatenate((held, np.zeros((_AFTER, held.shape[1]), np.float32)))
        ready = resampled_length(received)
    else:
        ready = max(emitted, resampled_length(received - _AFTER))
    outputs = np.arange(emitted, ready)
    start = outputs * ORIG // NEW - _BEFORE - first
    taps = polyphase_taps()[outputs % NEW].T
    wide = np.ascontiguousarray(held.T, dtype=np.float64)
    total = np.zeros((held.shape[1], len(outputs)))
    for tap in range(_TAPS):
        total += wide[:, start + tap] * taps[tap]
    kept = max(0, ready * ORIG // NEW - _BEFORE - first)
    return total.T, {"tail": held[kept:].copy(), "received": received, "emitted": ready}
