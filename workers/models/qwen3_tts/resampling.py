"""From any sample rate to the models' own, a whole recording at a time.

A polyphase windowed sinc, flat up to 0.93 of the lower Nyquist frequency. Every output sample is one sum in a fixed
order, in float64.
"""

from __future__ import annotations

import math

import numpy as np

_ZERO_CROSSINGS = 48  # of the sinc, a side
_BETA = 12.0  # of the Kaiser window: about -118 dB
_ROLLOFF = 0.95


def resample(pcm: np.ndarray, rate: int, to_rate: int) -> np.ndarray:
    """(samples,) at `rate` Hz -> (ceil(samples * to_rate / rate),) float32; silence on both sides is assumed."""
    if rate == to_rate:
        return pcm.astype(np.float32, copy=False)
    common = math.gcd(rate, to_rate)
    up, down = to_rate // common, rate // common
    cutoff = _ROLLOFF * min(1.0, up / down)  # in units of the input's Nyquist frequency
    side = math.ceil(_ZERO_CROSSINGS / cutoff)
    length = -(-len(pcm) * up // down)
    silence = np.zeros(side + down, np.float64)
    held = np.concatenate([silence[:side], pcm, silence])
    windows = np.lib.stride_tricks.sliding_window_view(held, 2 * side + 1)
    made = np.empty(length, np.float32)
    for phase in range(min(up, length)):  # outputs phase, phase + up, ... stand alike between two inputs
        left, fraction = divmod(phase * down, up)
        count = len(range(phase, length, up))
        spaced = windows[left::down][:count]
        made[phase::up] = np.einsum("nt,t->n", spaced, _taps(side, fraction / up, cutoff))
    return made


def _taps(side: int, fraction: float, cutoff: float) -> np.ndarray:
    """What the inputs from `side` before to `side` after the left neighbour weigh, (2 * side + 1,) float64."""
    offsets = np.arange(-side, side + 1) - fraction
    inside = np.clip(1 - (offsets * cutoff / _ZERO_CROSSINGS) ** 2, 0, 1)
    window = np.where(inside > 0, np.i0(_BETA * np.sqrt(inside)) / np.i0(_BETA), 0.0)
    return np.sinc(offsets * cutoff) * window * cutoff
