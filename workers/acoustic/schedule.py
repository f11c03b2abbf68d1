"""Whose window is decoded next: whoever's listener runs dry first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nsmallest


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job with a window to decode. Times in Unix seconds.

    `heard_from`: when its first chunk came out, None before that; `seconds`: sound that is out; `since`: when its first
    span was there.
    """

    job: str
    since: float
    heard_from: float | None
    seconds: float

    def dry_at(self, window_s: float) -> float:
        """When a listener who started at the first chunk hears silence.

        Nobody listens to a job without a chunk yet: it waits from `since` on, and is put off for a window's decoding
        time, so that a listener with less than that left is not cut off for a newcomer.
        """
        if self.heard_from is None:
            return self.since + window_s
        return self.heard_from + self.seconds


def first_to_run_dry(waiting: Iterable[Waiting], window_s: float, count: int = 1) -> list[Waiting]:
    """The `count` most urgent jobs, or as many as there are; `window_s` is how long a window takes to decode."""
    return nsmallest(count, waiting, key=lambda job: (job.dry_at(window_s), job.since, job.job))
