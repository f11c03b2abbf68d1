"""A training step that is captured once, where there is a GPU, and replayed: a small model waits for launches else."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

# What a step returns: figures by name, tensors of one number.
Figures = dict[str, Tensor]

_LONGEST_S = 5.0  # of a step, as a budget counts it
_WARM_UP = 3  # steps before the capture, so that whatever is allocated or chosen once has been


class CapturedStep:
    """Runs `step(*inputs)`, which must not wait for the device nor branch on numbers.

    Args:
        inputs: examples; every call's have their shapes.
        capture: replay a CUDA graph; without, the step is run as it is.
    """

    def __init__(self, step: Callable[..., Figures], inputs: tuple[Tensor, ...], *, capture: bool) -> None:
        self.step = step
        self._graph: torch.cuda.CUDAGraph | None = None
        if not capture:
            return
        self._inputs = tuple(tensor.clone() for tensor in inputs)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                step(*self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._figures = step(*self._inputs)

    def __call__(self, *inputs: Tensor) -> Figures:
        if self._graph is None:
            return self.step(*inputs)
        for held, given in zip(self._inputs, inputs, strict=True):
            held.copy_(given, non_blocking=True)
        self._graph.replay()
        return self._figures


def optimiser(parameters: list[Tensor], rate: float, *, betas: tuple[float, float], capture: bool) -> torch.optim.AdamW:
    """AdamW whose learning rate may change between the replays of a captured step."""
    device = parameters[0].device
    chosen = torch.tensor(rate, device=device) if capture else rate
    return torch.optim.AdamW(parameters, chosen, betas=betas, weight_decay=0.01, capturable=capture)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Change the learning rate of every group."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class Budget:
    """The time that a training may take. What it was stopped for (SIGSTOP lends its card to others) is not counted."""

    def __init__(self, minutes: float) -> None:
        self._seconds = 60 * minutes
        self._used, self._looked = 0.0, time.monotonic()

    def spent(self) -> float:
        """The share of it that is spent; to be asked after each step."""
        now = time.monotonic()
        self._used += min(now - self._looked, _LONGEST_S)
        self._looked = now
        return self._used / self._seconds


def remaining(spent: float) -> float:
    """What is left of the learning rate when a share of the time is spent: a cosine to a twentieth."""
    return 0.05 + 0.95 * (1 + math.cos(math.pi * min(1.0, spent))) / 2


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU; on the CPU nothing changes."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def move(optimiser: torch.optim.Optimizer, parameters: list[Tensor], loss: Tensor, clip: float) -> None:
    """One step of the optimiser down the loss; the gradients' norm is at most `clip`."""
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    torch.nn.utils.clip_grad_norm_(parameters, clip)
    optimiser.step()


def report(what: str, figures: Figures, begun: float) -> None:
    """A line of the figures; `begun` is on the monotonic clock."""
    told = "  ".join(f"{name} {value.item():.4f}" for name, value in figures.items())
    print(f"{what}  {time.monotonic() - begun:.0f} s  {told}", flush=True)
