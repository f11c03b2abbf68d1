"""Whose window is decoded next: whoever's listener runs dry first."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job with a window to decode. Times in Unix seconds.

    `heard_from`: when its first chunk came out, None before that; `seconds`: sound that is out; `since`: when its first
    span was there. `ready_at`: when this window was. Windows of one `shape` are decoded together at the least cost.
    """

    job: str
    since: float
    heard_from: float | None
    seconds: float
    ready_at: float = 0.0
    shape: Hashable = None

    def dry_at(self, window_s: float) -> float:
        """When a listener who started at the first chunk hears silence.

        Nobody listens to a job without a chunk yet: it waits from `since` on, and is put off for a window's decoding
        time, so that a listener with less than that left is not cut off for a newcomer.
        """
        if self.heard_from is None:
            return self.since + window_s
        return self.heard_from + self.seconds


@dataclass(frozen=True, slots=True)
class Batches:
    """Which windows are decoded together, and when.

    Windows of one shape go together, the most urgent first. A batch that has room yet waits for more, as it costs the
    same with few windows in it as with many: for `gather_s` at most, never so long that a listener runs dry, and not
    where few are expected.

    A window is never split, so one that nobody needs yet is held back, for `hold_s` at most, where somebody would run
    dry within that time whose own window is still to come.

    size: windows of a batch at most. hold_s: 0 holds none back.
    """

    size: int
    gather_s: float
    hold_s: float = 0.0

    def next(
        self, waiting: Iterable[Waiting], *, now: float, window_s: float, expected: int, dry_at: Sequence[float] = ()
    ) -> tuple[list[Waiting], float]:
        """The batch to decode now; or nothing, and how long to wait for more. ([], 0.0) where nobody waits.

        Args:
            now: Unix seconds. window_s: how long a window takes to decode. expected: jobs that may bring windows soon.
            dry_at: when those of them run dry that are heard.
        """
        batches: dict[Hashable, list[Waiting]] = {}
        urgent = sorted(waiting, key=lambda job: _urgency(job, window_s))
        for job in urgent:
            batches.setdefault(job.shape, []).append(job)
        waits = []
        for batch in batches.values():
            gathered_at = min(job.ready_at for job in batch) + self.gather_s
            wait = min(gathered_at, batch[0].dry_at(window_s) - 2 * window_s) - now
            if len(batch) >= self.size or expected < self.size or wait <= 0:
                wait = self._hold(batch, dry_at, now, window_s)
            if wait <= 0:
                return batch[: self.size], 0.0
            waits.append(wait)
        return [], min(waits, default=0.0)

    def _hold(self, batch: list[Waiting], dry_at: Sequence[float], now: float, window_s: float) -> float:
        """How long to hold a batch back for those who run dry before it would be done; not over 0 for not at all."""
        within = [dry for dry in dry_at if now < dry < now + self.hold_s + window_s]
        held_until = min(job.ready_at for job in batch) + self.hold_s
        return min([*within, held_until, batch[0].dry_at(window_s) - 2 * window_s]) - now if within else 0.0


def _urgency(job: Waiting, window_s: float) -> tuple[float, float, str]:
    return job.dry_at(window_s), job.since, job.job
