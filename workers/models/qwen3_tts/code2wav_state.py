"""A decoder's state as one row of numbers a dtype, so that moving it is a copy or two and not one an entry."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from workers.models.qwen3_tts.code2wav_layers import State

Packed = tuple[Tensor, ...]  # (B, numbers) each, one for each of a layout's dtypes


class StateLayout:
    """Where a state's entries lie in its packed form: side by side, by dtype."""

    def __init__(self, state: State) -> None:
        self.dtypes: tuple[torch.dtype, ...] = tuple(dict.fromkeys(entry.dtype for entry in state.values()))
        self._names = [[name for name in state if state[name].dtype == dtype] for dtype in self.dtypes]
        self._shapes = {name: entry.shape[1:] for name, entry in state.items()}

    def pack(self, state: State) -> Packed:
        """Entries (B, ...) -> rows that share no memory with them."""
        return tuple(
            torch.cat([state[name].reshape(len(state[name]), -1) for name in names], dim=1) for names in self._names
        )

    def unpack(self, packed: Sequence[Tensor]) -> State:
        """Rows -> entries (B, ...), which are views of them."""
        state = {}
        for names, rows in zip(self._names, packed, strict=True):
            widths = [math.prod(self._shapes[name]) for name in names]
            for name, entry in zip(names, rows.split(widths, dim=1), strict=True):
                state[name] = entry.unflatten(1, self._shapes[name]) if self._shapes[name] else entry[:, 0]
        return state
