"""The guard against a model that never ends: now and then one says the same sound again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_ALIKE = 0.95  # of the frames in a loop


@dataclass(frozen=True, slots=True)
class LoopGuard:
    """A job is caught in a loop where its first codes have repeated with a short period for long.

    A function of the codes alone, looked at every so many frames: a successor that repeats the codes ends the job at
    the same frame.

    frames: how long a loop has to last. period: the longest that is looked for, in frames. every: frames between looks.
    """

    frames: int
    period: int
    every: int = 25

    def caught(self, codes: Sequence[np.ndarray]) -> bool:
        """codes: (codebooks,) of each frame so far, of which the newest is new."""
        if len(codes) < self.frames or len(codes) % self.every:
            return False
        first = np.array([frame[0] for frame in codes[-self.frames :]])
        return any(np.mean(first[period:] == first[:-period]) >= _ALIKE for period in range(1, self.period + 1))
