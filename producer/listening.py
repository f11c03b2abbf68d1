"""What a listener lived through: pure arithmetic over the arrivals of sound. All times in seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Arrival:
    """A piece of sound: when it came, and how long it plays."""

    at: float
    plays: float


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` (0 to 1) of `values` lie, linear between neighbours; None where there are none."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    return {f"p{percent}": percentile(values, percent / 100) for percent in (50, 95, 99)}


def underrun(arrivals: Sequence[Arrival]) -> float:
    """How long a listener who starts to play at the first arrival waits in silence until the last one."""
    silence = 0.0
    played_out = arrivals[0].at if arrivals else 0.0
    for arrival in arrivals:
        silence += max(0.0, arrival.at - played_out)
        played_out = max(played_out, arrival.at) + arrival.plays
    return silence


def longest_gap(arrivals: Sequence[Arrival]) -> float:
    """The longest time between two arrivals."""
    return max((later.at - earlier.at for earlier, later in pairwise(arrivals)), default=0.0)
