"""Raising a sample rate: Opus knows only a few rates, and 32 kHz is none of them."""

from __future__ import annotations

import math

import numpy as np

_TAPS = 32  # input samples that an output sample is made of
_BETA = 9.0  # of the Kaiser window: about -90 dB
_BLOCK = 16_384  # output samples at a time, so that memory stays small


class Upsampler:
    """A polyphase filter fed block by block; the blocks' borders leave no trace in the output."""

    def __init__(self, rate: int, to_rate: int, channels: int) -> None:
        """Raises ValueError unless `to_rate` is the higher one."""
        if to_rate <= rate:
            raise ValueError(f"{rate} Hz cannot be raised to {to_rate} Hz")
        common = math.gcd(rate, to_rate)
        self._up, self._down = to_rate // common, rate // common
        self._phases = _phases(self._up)
        self._held = np.zeros((_TAPS // 2 - 1, channels), np.float32)  # input that later output still needs
        self._held_from = 1 - _TAPS // 2  # index of its first sample
        self._taken = 0
        self._made = 0

    def add(self, samples: np.ndarray) -> np.ndarray:
        """(n, channels) float32 in, the output that this completes."""
        self._taken += len(samples)
        return self._advance(samples, (self._taken - _TAPS // 2) * self._up // self._down)

    def end(self) -> np.ndarray:
        """What is left: in all, the output has ceil(n * to_rate / rate) samples."""
        silence = np.zeros((_TAPS // 2 + 1, self._held.shape[1]), np.float32)
        return self._advance(silence, -(-self._taken * self._up // self._down))

    def _advance(self, samples: np.ndarray, until: int) -> np.ndarray:
        held = np.concatenate([self._held, samples.astype(np.float32, copy=False)])
        blocks = []
        while self._made < until:
            positions = np.arange(self._made, min(until, self._made + _BLOCK)) * self._down
            first = positions // self._up - (_TAPS // 2 - 1) - self._held_from
            windows = np.lib.stride_tricks.sliding_window_view(held, _TAPS, axis=0)[first]  # (n, channels, taps)
            blocks.append(np.einsum("nct,nt->nc", windows, self._phases[positions % self._up]))
            self._made += len(positions)
        keep = max(0, self._made * self._down // self._up - (_TAPS // 2 - 1) - self._held_from)
        self._held, self._held_from = held[keep:], self._held_from + keep
        return np.concatenate(blocks) if blocks else np.empty((0, held.shape[1]), np.float32)


def _phases(up: int) -> np.ndarray:
    """(up, taps): the windowed sinc's weights for each place between two input samples."""
    offsets = np.arange(1 - _TAPS // 2, _TAPS // 2 + 1)[None, :] - np.arange(up)[:, None] / up
    inside = np.clip(1 - (offsets / (_TAPS / 2)) ** 2, 0, 1)
    weights = np.sinc(offsets) * np.i0(_BETA * np.sqrt(inside)) / np.i0(_BETA)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
