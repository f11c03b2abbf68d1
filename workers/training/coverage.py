"""Phonemes and their pairs: which lines to take so that the rare ones are heard, and how often each is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise

OFTEN_ENOUGH = 30  # lines that a pair of phonemes should be in, where there are that many


def pairs(phonemes: str) -> set[str]:
    """The pairs of phonemes next to each other in a line; spaces and punctuation are phonemes too."""
    return {first + second for first, second in pairwise(phonemes)}


def choose(lines: Sequence[tuple[str, Hashable]], quotas: Mapping[Hashable, int]) -> list[int]:
    """Places of the lines to take, of each group as many as its quota says, where there are as many.

    A line is (phonemes, group). Those that have a pair which few lines have come first, the rarest pair first; the rest
    are taken in the order given.
    """
    having: dict[str, list[int]] = defaultdict(list)
    for place, (phonemes, _) in enumerate(lines):
        for pair in pairs(phonemes):
            having[pair].append(place)
    left, covered, taken = Counter(quotas), Counter(), {}

    def take(place: int) -> None:
        phonemes, group = lines[place]
        if place not in taken and left[group] > 0:
            left[group] -= 1
            taken[place] = True
            covered.update(pairs(phonemes))

    for pair in sorted(having, key=lambda pair: (len(having[pair]), pair)):
        for place in having[pair]:
            if covered[pair] >= OFTEN_ENOUGH:
                break
            take(place)
    for place in range(len(lines)):
        take(place)
    return sorted(taken)


def counts(lines: Sequence[str]) -> tuple[Counter[str], Counter[str]]:
    """How often each phoneme, and each pair of them, is in these phoneme strings."""
    phonemes, paired = Counter(), Counter()
    for line in lines:
        phonemes.update(line)
        paired.update(first + second for first, second in pairwise(line))
    return phonemes, paired
