"""Window arithmetic: which frames a window covers, when it is known not to be the last, and what a span brings.

A window is what the acoustic stage decodes at a time; neighbours overlap. Each frame is sent once: the first window
brings all of its frames, each later one a hop of new ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Plan(Protocol):
    """How a job's frames make windows: a function of the job alone. All counts are in emitted frames."""

    @property
    def hop(self) -> int:
        """Frames whose codes are logged at a time, where no span carries them."""
        ...

    def count(self, frames: int) -> int:
        """How many windows a job of `frames` frames has."""
        ...

    def bounds(self, index: int, frames: int) -> tuple[int, int]:
        """[start, end) of window `index` in a job of `frames` frames."""
        ...

    def whole(self, frames: int) -> int:
        """How many windows are known to be whole and not the last, once `frames` frames are there: one frame late."""
        ...

    def sent_with(self, windows: int) -> int:
        """Frames that the first `windows` whole windows bring."""
        ...


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """Windows of `window` frames, one every `hop` frames. All counts are in emitted frames."""

    window: int
    hop: int

    def count(self, frames: int) -> int:
        """How many windows a song of `frames` frames has."""
        if frames <= self.window:
            return 1 if frames > 0 else 0
        return 1 + -(-(frames - self.window) // self.hop)

    def bounds(self, index: int, frames: int) -> tuple[int, int]:
        """[start, end) of window `index` in a song of `frames` frames."""
        start = index * self.hop
        return start, min(start + self.window, frames)

    def whole(self, frames: int) -> int:
        """How many windows are known to be whole and not the last, once `frames` frames are there: one frame late."""
        if frames <= self.window:
            return 0
        return 1 + (frames - self.window - 1) // self.hop

    def sent_with(self, windows: int) -> int:
        """Frames that the first `windows` whole windows bring."""
        return 0 if windows == 0 else self.window + (windows - 1) * self.hop

    @property
    def longest_span(self) -> int:
        """The most frames that a terminal span's windows cover: the frame budget may end a song one frame late."""
        return self.window + 1


@dataclass(frozen=True, slots=True)
class RampPlan:
    """Windows that do not overlap, short ones first so that sound comes early: `ramp` frames, then `hop` each."""

    ramp: tuple[int, ...]
    hop: int

    def frames_of(self, index: int) -> int:
        """Frames of window `index` where it is whole."""
        return self.ramp[index] if index < len(self.ramp) else self.hop

    def count(self, frames: int) -> int:
        windows, ramped = 0, 0
        for length in self.ramp:
            if frames <= ramped:
                return windows
            windows, ramped = windows + 1, ramped + length
        return windows + -(-max(0, frames - ramped) // self.hop)

    def bounds(self, index: int, frames: int) -> tuple[int, int]:
        start = self.sent_with(index)
        return start, min(start + self.frames_of(index), frames)

    def whole(self, frames: int) -> int:
        return max(0, self.count(frames) - 1)

    def sent_with(self, windows: int) -> int:
        return sum(self.ramp[:windows]) + max(0, windows - len(self.ramp)) * self.hop

    @property
    def longest_span(self) -> int:
        """As WindowPlan's."""
        return max(*self.ramp, self.hop) + 1
