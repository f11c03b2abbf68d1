"""Spectrograms, and how far two sounds are apart in them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workers.models.qwen3_tts.config import SAMPLE_RATE

_FLOOR = 1e-5
_SCALES = ((2048, 128), (1024, 100), (512, 64), (256, 32), (128, 16))  # FFT size, mel bands


class LogMel(nn.Module):
    """A logarithmic mel spectrogram, centred on its hops.

    Args:
        fft: samples of a window.
        hop: samples between two.
        mels: bands, up to half the sample rate.
    """

    def __init__(self, fft: int, hop: int, mels: int) -> None:
        super().__init__()
        self._fft, self._hop = fft, hop
        self.register_buffer("window", torch.hann_window(fft), persistent=False)
        self.register_buffer("bands", mel_bands(fft, mels), persistent=False)

    def forward(self, sound: Tensor) -> Tensor:
        """(B, samples) -> (B, mels, samples // hop + 1) float32."""
        return (self.bands @ magnitudes(sound, self._fft, self._hop, self.window)).clamp(min=_FLOOR).log()


def magnitudes(sound: Tensor, fft: int, hop: int, window: Tensor) -> Tensor:
    """(B, samples) -> (B, fft // 2 + 1, samples // hop + 1) float32."""
    padded = F.pad(sound.float()[:, None], (fft // 2, fft // 2), mode="reflect")[:, 0]
    spectrum = torch.stft(padded, fft, hop, window=window, center=False, return_complex=True)
    return (spectrum.real.square() + spectrum.imag.square() + 1e-9).sqrt()


def mel_bands(fft: int, mels: int) -> Tensor:
    """(mels, fft // 2 + 1): triangles of equal height, on the HTK scale."""
    top = 2595 * math.log10(1 + SAMPLE_RATE / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, mels + 2) / 2595) - 1)
    bins = torch.linspace(0, SAMPLE_RATE / 2, fft // 2 + 1)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0)


class SpectralDistance(nn.Module):
    """The mean difference of log-mel spectrograms of several window lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.spectra = nn.ModuleList(LogMel(fft, fft // 4, mels) for fft, mels in _SCALES)

    def forward(self, made: Tensor, true: Tensor) -> Tensor:
        """Of (B, samples) each."""
        return sum(F.l1_loss(spectrum(made), spectrum(true)) for spectrum in self.spectra) / len(self.spectra)
