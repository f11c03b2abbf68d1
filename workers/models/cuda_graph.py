"""A function of tensors as one CUDA graph, and a host that does not run ahead of its device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_WARM_UPS = 2  # calls before the capture: libraries set themselves up in the first, which a capture does not allow


class Graphed:
    """A function of tensors on a CUDA device: captured at its first call, replayed from then on.

    Every call must have the shapes and dtypes of the first. The function must not wait for the device. What it returns
    is the caller's own; the kernels, and so the bits, are those of the first call.

    Args:
        function: tensors in; a tensor, or several, out.
        pool: memory that it may share with other graphs, where no two of them ever run at once.
    """

    def __init__(self, function: Callable[..., Tensor | tuple[Tensor, ...]], pool: tuple[int, int]) -> None:
        self._function = function
        self._pool = pool
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._output: Tensor | tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        if self._graph is None:
            self._capture(inputs)
        for buffer, new in zip(self._inputs, inputs, strict=True):
            buffer.copy_(new)
        self._graph.replay()
        if isinstance(self._output, Tensor):
            return self._output.clone()
        return tuple(tensor.clone() for tensor in self._output)

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        self._inputs = tuple(tensor.clone() for tensor in inputs)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self._function(*self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # thread_local: other threads of the process, such as a talker's, go on calling CUDA meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            self._output = self._function(*self._inputs)
        self._graph = graph


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
