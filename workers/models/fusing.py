"""torch.compile where it fuses small kernels and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def fused(function: Callable[_Given, _Made], *, dynamic: bool | None = False) -> Callable[_Given, _Made]:
    """The function with its small kernels fused, compiled when it is first called with tensors of a shape.

    Which kernel is fastest is not measured: another choice would round otherwise.

    Args:
        dynamic: one kernel for all shapes; None: for those that changed once. For a function without sums alone, as the
            order of a sum may hang on its kernel.
    """
    return torch.compile(function, dynamic=dynamic, options={"deterministic": True})
