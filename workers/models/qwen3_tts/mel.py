"""The log-mel spectrogram that the speaker encoder listens to."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from workers.models.qwen3_tts.config import SAMPLE_RATE

BANDS = 128
WINDOW = 1_024  # samples, also the size of the transform
HOP = 256

_LOWEST, _HIGHEST = 0.0, 12_000.0  # Hz
_FLOOR = 1e-5
# Slaney's mel scale: linear below 1 kHz, then 27 steps to each factor of 6.4.
_LINEAR_HZ = 200 / 3
_BREAK_HZ = 1_000.0
_BREAK_MEL = _BREAK_HZ / _LINEAR_HZ
_LOG_STEP = np.log(6.4) / 27


def log_mel(pcm: Tensor) -> Tensor:
    """(samples,) float32 at 24 kHz -> (frames, 128). Needs over 384 samples."""
    edge = (WINDOW - HOP) // 2
    padded = functional.pad(pcm[None, None], (edge, edge), mode="reflect")[0]
    window = torch.hann_window(WINDOW, device=pcm.device)
    spectrum = torch.stft(padded, WINDOW, HOP, window=window, center=False, return_complex=True)[0]
    magnitude = torch.sqrt(torch.view_as_real(spectrum).pow(2).sum(-1) + 1e-9)
    return torch.log((_filters().to(pcm.device) @ magnitude).clamp(min=_FLOOR)).T


@cache
def _filters() -> Tensor:
    """(bands, bins) float32: triangles evenly spaced in mel, each of unit area in Hz."""
    bins = np.linspace(0, SAMPLE_RATE / 2, WINDOW // 2 + 1)
    edges = _hertz(np.linspace(_mel(_LOWEST), _mel(_HIGHEST), BANDS + 2))
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (bins - left) / (centre - left), (right - bins) / (right - centre)
    triangles = np.maximum(0, np.minimum(rising, falling)) * (2 / (right - left))
    return torch.from_numpy(triangles.astype(np.float32))


def _mel(hertz: float) -> float:
    if hertz < _BREAK_HZ:
        return hertz / _LINEAR_HZ
    return _BREAK_MEL + np.log(hertz / _BREAK_HZ) / _LOG_STEP


def _hertz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < _BREAK_MEL, mel * _LINEAR_HZ, _BREAK_HZ * np.exp((mel - _BREAK_MEL) * _LOG_STEP))
