"""Window arithmetic: which frames a window covers, when it is known not to be the last, and what a span brings.

A window is what the acoustic stage decodes at a time; neighbours overlap. Each frame is sent once: the first window
brings all of its frames, each later one a hop of new ones.
"""

from __future__ import annotations

from dataclasses import dataclass


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
