"""How much each section does, by size; the seconds it takes are those of one runner."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    lengths: tuple[int, ...]  # frames of the songs sent alone
    levels: tuple[int, ...]  # songs at once
    songs: int  # of the soak; the first of them make the levels
    shortest: int
    longest: int  # frames of those songs
    pressed: int  # frames of the eight songs under pressure
    taken_over: int  # frames of the song that is taken over
    stepped: int  # songs at once, at most, whose steps are timed
    measured: int  # steps timed at each number of songs
    windows: int  # windows timed
    served: tuple[int, int]  # frames of the songs through the pipeline, from and to
    listeners: tuple[int, ...]
    rounds: int | None = None  # requests that each listener makes; None: two of the few, one of many

    def requests(self, listeners: int) -> int:
        """How many are sent, by so many listeners at a time."""
        if self.rounds is not None:
            return self.rounds * listeners
        return max(2, 2 * listeners if listeners < 8 else listeners)


DRY = Plan(
    lengths=(1, 8, 20), levels=(2, 4), songs=6, shortest=4, longest=16, pressed=80, taken_over=20, stepped=4,
    measured=10, windows=2, served=(60, 60), listeners=(1, 2),
)  # fmt: skip
WHOLE = Plan(
    lengths=(1, 50, 199, 200, 201, 250, 750, 2250), levels=(2, 4, 8, 16), songs=40, shortest=30, longest=250,
    pressed=250, taken_over=250, stepped=64, measured=200, windows=5, served=(500, 500), listeners=(1, 2, 4, 8, 16),
)  # fmt: skip

# Seconds on one H200, of one runner and configuration: (tiny, full).
EXPECTED_S = {
    "alone": (60, 150),
    "concurrent": (90, 200),
    "pressure": (120, 300),
    "takeover": (40, 90),
    "exact": (110, 300),
    "steps": (60, 120),
    "acoustic": (90, 240),
    "pipeline": (120, 240),
}
