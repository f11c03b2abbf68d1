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
import torch
from torch import Tensor
from torch.nn import functional as F

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


@cache
def _taps(device: torch.device) -> Tensor:
    """(18, 320) float64."""
    return torch.from_numpy(np.ascontiguousarray(polyphase_taps().T)).to(device)


def resample(samples: Tensor, state: dict[str, Any], *, last: bool) -> tuple[Tensor, dict[str, Any]]:
    """Take the next samples of a stream, give the output samples that they complete. The same bits on every device.

    Args:
        samples: (channels, n) float32 at 44.1 kHz, n >= 0.
        state: what the previous call returned, maybe among other keys; {} at the start.
        last: whether the stream ends here, and silence follows.

    Returns:
        (channels, m) float64 at 32 kHz, on the device of `samples`, and the state: `tail` ((n, channels) float32, the
        inputs still needed), `received` and `emitted` (sample counts).
    """
    channels, device = len(samples), samples.device
    received = state.get("received", 0) + samples.shape[1]
    emitted = state.get("emitted", 0)
    tail = state.get("tail", np.zeros((_BEFORE, channels), np.float32))
    held = torch.cat((torch.from_numpy(tail.T.copy()).to(device), samples), dim=1)
    first = received - held.shape[1]  # the stream position of held[:, 0]
    if last:
        held = F.pad(held, (0, _AFTER))
        ready = resampled_length(received)
    else:
        ready = max(emitted, resampled_length(received - _AFTER))
    outputs = torch.arange(emitted, ready, device=device)
    start, phase = outputs * ORIG // NEW - _BEFORE - first, outputs % NEW
    wide, taps = held.double(), _taps(device)
    total = torch.zeros(channels, len(outputs), dtype=torch.float64, device=device)
    for tap in range(_TAPS):  # a product, then a sum: fused, they would round once
        total += wide.index_select(1, start + tap) * taps[tap].index_select(0, phase)
    kept = max(0, ready * ORIG // NEW - _BEFORE - first)
    tail = held[:, kept:].T.cpu().numpy().copy()
    return total, {"tail": tail, "received": received, "emitted": ready}
