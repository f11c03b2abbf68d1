"""A function of tensors as one CUDA graph, and a host that does not run ahead of its device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

_Made = TypeVar("_Made", Tensor, tuple[Tensor, ...])

_WARM_UPS = 2  # calls before the capture: libraries set themselves up in the first, which a capture does not allow


@dataclass(frozen=True, slots=True)
class _Capture(Generic[_Made]):
    """A graph, and the memory that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    output: _Made


class Graphed(Generic[_Made]):
    """A function of tensors on a CUDA device: captured at its first call, replayed from then on.

    Every call must have the shapes and dtypes of the first. The function must not wait for the device. What it returns
    is the caller's own; the kernels, and so the bits, are those of the first call.

    Args:
        function: tensors in; a tensor, or several, out.
        pool: memory that it may share with other graphs, where no two of them ever run at once.
    """

    def __init__(self, function: Callable[..., _Made], pool: _POOL_HANDLE) -> None:
        self._function: Callable[..., _Made] = function
        self._pool = pool
        self._captured: _Capture[_Made] | None = None

    def __call__(self, *inputs: Tensor) -> _Made:
        if self._captured is None:
            self._captured = self._capture(inputs)
        captured = self._captured
        for buffer, new in zip(captured.inputs, inputs, strict=True):
            buffer.copy_(new)
        captured.graph.replay()
        if isinstance(captured.output, Tensor):
            return captured.output.clone()
        return tuple(tensor.clone() for tensor in captured.output)

    def _capture(self, inputs: tuple[Tensor, ...]) -> _Capture[_Made]:
        own = tuple(tensor.clone() for tensor in inputs)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self._function(*own)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # thread_local: other threads of the process, such as a talker's, go on calling CUDA meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            output = self._function(*own)
        return _Capture(graph, own, output)


class Pace:
    """Lets the host be one call ahead of the device and no more: what it asks between two calls is then not stale."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._newest: torch.cuda.Event | None = None

    def keep(self) -> None:
        """After a call: wait for the one before it."""
        if self._device.type != "cuda":
            return
        before, self._newest = self._newest, torch.cuda.Event(blocking=True)
        self._newest.record()
        if before is not None:
            before.synchronize()
