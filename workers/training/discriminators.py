"""The codec's critics: who tells a decoded sound from a true one, and so teaches the decoder what mel spectra miss.

As in HiFi-GAN (Kong et al., 2020) by period, and as in EnCodec (Défossez et al., 2022) by spectrogram, both narrow.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

_PERIODS = (2, 3, 5, 7, 11)
_PERIOD_CHANNELS = (1, 32, 64, 128, 256)
_FFTS = (2048, 1024, 512, 256)
_SPECTRAL_CHANNELS = 32

# Of each critic: its last layer's opinions, and what its layers saw on the way.
Opinions = list[tuple[Tensor, list[Tensor]]]


class _ByPeriod(nn.Module):
    """Sees every `period`th sample side by side."""

    def __init__(self, period: int) -> None:
        super().__init__()
        self._period = period
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(inner, outer, (5, 1), (3, 1), padding=(2, 0)))
            for inner, outer in pairwise(_PERIOD_CHANNELS)
        )
        self.layers.append(weight_norm(nn.Conv2d(_PERIOD_CHANNELS[-1], _PERIOD_CHANNELS[-1], (5, 1), padding=(2, 0))))
        self.last = weight_norm(nn.Conv2d(_PERIOD_CHANNELS[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, sound: Tensor) -> tuple[Tensor, list[Tensor]]:
        x = F.pad(sound, (0, -sound.shape[1] % self._period)).unflatten(1, (-1, self._period))[:, None]
        seen = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.1)
            seen.append(x)
        return self.last(x), seen


class _BySpectrum(nn.Module):
    """Sees a complex spectrogram."""

    def __init__(self, fft: int) -> None:
        super().__init__()
        self._fft = fft
        self.register_buffer("window", torch.hann_window(fft), persistent=False)
        width = _SPECTRAL_CHANNELS
        layers = [nn.Conv2d(2, width, (3, 9), padding=(1, 4))]
        layers += [nn.Conv2d(width, width, (3, 9), (1, 2), (d, 4), (d, 1)) for d in (1, 2, 4)]
        layers += [nn.Conv2d(width, width, (3, 3), padding=(1, 1))]
        self.layers = nn.ModuleList(weight_norm(layer) for layer in layers)
        self.last = weight_norm(nn.Conv2d(width, 1, (3, 3), padding=(1, 1)))

    def forward(self, sound: Tensor) -> tuple[Tensor, list[Tensor]]:
        with torch.autocast(sound.device.type, enabled=False):
            spectrum = torch.stft(
                sound.float(), self._fft, self._fft // 4, window=self.window, normalized=True, return_complex=True
            )
        x = torch.view_as_real(spectrum).permute(0, 3, 2, 1)  # (B, 2, T, bins)
        seen = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.2)
            seen.append(x)
        return self.last(x), seen


class Discriminators(nn.Module):
    """All critics."""

    def __init__(self) -> None:
        super().__init__()
        self.critics = nn.ModuleList([*map(_ByPeriod, _PERIODS), *map(_BySpectrum, _FFTS)])

    def forward(self, sound: Tensor) -> Opinions:
        """Of (B, samples)."""
        return [critic(sound) for critic in self.critics]


def critics_loss(of_true: Opinions, of_made: Opinions) -> Tensor:
    """What the critics learn by: hinges."""
    losses = [
        F.relu(1 - true).mean() + F.relu(1 + made).mean() for (true, _), (made, _) in zip(of_true, of_made, strict=True)
    ]
    return torch.stack(losses).mean()


def decoder_losses(of_true: Opinions, of_made: Opinions) -> tuple[Tensor, Tensor]:
    """What the decoder learns by: to please them, and that they see the same in both, relative to what they see.

    `of_true` is a constant.
    """
    pleasing = torch.stack([-made.mean() for made, _ in of_made]).mean()
    matching = torch.stack(
        [
            F.l1_loss(made, true) / true.abs().mean().clamp(min=1e-4)
            for (_, trues), (_, mades) in zip(of_true, of_made, strict=True)
            for true, made in zip(trues, mades, strict=True)
        ]
    ).mean()
    return pleasing, matching
