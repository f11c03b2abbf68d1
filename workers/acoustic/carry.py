"""What the acoustic stage carries from one window of a job to the next, and through a crash."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from broker_schemas.codec import Tensor, pack, unpack


@dataclass(slots=True)
class Carry:
    """State after `windows` windows.

    shared: (frames, width) float32, conditioning that the next window begins with and that is not sent again.
    state: the family's own; see `AcousticModel.window`. `samples` per channel, so far.
    """

    windows: int = 0
    samples: int = 0
    shared: np.ndarray | None = None
    state: dict[str, Any] = field(default_factory=dict)

    def pack(self) -> bytes:
        return pack({"windows": self.windows, "samples": self.samples, "shared": self.shared, "state": self.state})

    @classmethod
    def unpack(cls, raw: bytes) -> Carry:
        values = unpack(raw)
        shared = values["shared"]
        state = {key: value.numpy() if isinstance(value, Tensor) else value for key, value in values["state"].items()}
        return cls(values["windows"], values["samples"], shared.numpy() if shared is not None else None, state)
