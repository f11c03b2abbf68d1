"""Small integers on their way to the device, without a wait: one copy at a time, from pinned memory of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_BUFFERS = 8  # copies that may be under way; more than an engine has steps in flight


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; in stream order, the host does not wait for the steps before."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class Uploads:
    """Host to device, every step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: list[tuple[Tensor, torch.cuda.Event] | None] = [None] * _BUFFERS
        self._turn = 0

    def put(self, *lists: Sequence[int]) -> list[Tensor]:
        """Each list as an int64 tensor on the device; in stream order, the host does not wait."""
        lengths = [len(numbers) for numbers in lists]
        flat = torch.tensor([number for numbers in lists for number in numbers], dtype=torch.int64)
        if self._device.type != "cuda":
            return list(flat.split(lengths))
        pinned, copied = self._pinned(len(flat))
        copied.synchronize()
        pinned[: len(flat)] = flat
        on_device = pinned[: len(flat)].to(self._device, non_blocking=True)
        copied.record()
        return list(on_device.split(lengths))

    def _pinned(self, size: int) -> tuple[Tensor, torch.cuda.Event]:
        self._turn = (self._turn + 1) % _BUFFERS
        buffer = self._buffers[self._turn]
        if buffer is None or len(buffer[0]) < size:
            buffer = torch.empty(max(size, 1024), dtype=torch.int64, pin_memory=True), torch.cuda.Event()
            self._buffers[self._turn] = buffer
        return buffer
