"""The frames' way out of the engine: copies to pinned memory on a stream of their own, which no step waits for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

_Song = TypeVar("_Song")

_STEPS = 8  # steps whose frames may be under way; the one before them is waited for


@dataclass(frozen=True, slots=True)
class Arrived(Generic[_Song]):
    """The frames of one step: codes (jobs, codebooks) int16, ended (jobs,), conditioning (jobs, width) float32.

    The arrays are valid until the next one is asked for. songs: who drew, and which draw.
    """

    codes: np.ndarray
    ended: np.ndarray
    conditioning: np.ndarray
    songs: list[tuple[_Song, int]]


@dataclass(slots=True)
class _Buffers(Generic[_Song]):
    codes: Tensor
    ended: Tensor
    conditioning: Tensor
    copied: torch.cuda.Event | None
    songs: list[tuple[_Song, int]]

    def arrived(self) -> Arrived[_Song]:
        return Arrived(self.codes.numpy(), self.ended.numpy(), self.conditioning.numpy(), self.songs)


class FrameCopies(Generic[_Song]):
    """Device to host, in the order of the steps."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._cuda else None
        self._under_way: deque[_Buffers[_Song]] = deque()
        self._spare: list[_Buffers[_Song]] = []

    def before_overwrite(self) -> None:
        """The current stream is about to overwrite what was sent last: it waits for the copy, and the host does not."""
        if self._under_way and self._under_way[-1].copied is not None:
            torch.cuda.current_stream().wait_event(self._under_way[-1].copied)

    def send(self, codes: Tensor, ended: Tensor, conditioning: Tensor, songs: list[tuple[_Song, int]]) -> None:
        """Start the copies of a step's frames."""
        buffers = self._spare.pop() if self._spare else self._new(codes, ended, conditioning)
        buffers.songs = songs
        if self._stream is not None and buffers.copied is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                self._copy(buffers, codes, ended, conditioning)
                buffers.copied.record()
        else:
            self._copy(buffers, codes, ended, conditioning)
        self._under_way.append(buffers)

    @staticmethod
    def _copy(buffers: _Buffers[_Song], codes: Tensor, ended: Tensor, conditioning: Tensor) -> None:
        buffers.codes.copy_(codes, non_blocking=True)
        buffers.ended.copy_(ended, non_blocking=True)
        buffers.conditioning.copy_(conditioning, non_blocking=True)

    def _new(self, *tensors: Tensor) -> _Buffers[_Song]:
        codes, ended, conditioning = (torch.empty(t.shape, dtype=t.dtype, pin_memory=self._cuda) for t in tensors)
        return _Buffers(codes, ended, conditioning, torch.cuda.Event() if self._cuda else None, [])

    def arrived(self) -> Iterator[Arrived[_Song]]:
        """The steps whose frames are here, oldest first."""
        while self._under_way:
            oldest = self._under_way[0]
            if oldest.copied is not None:
                if len(self._under_way) > _STEPS:
                    oldest.copied.synchronize()
                elif not oldest.copied.query():
                    return
            self._under_way.popleft()
            yield oldest.arrived()
            self._spare.append(oldest)
