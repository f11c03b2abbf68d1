"""Rare pairs of phonemes are heard, and no group has more lines than its quota."""

from __future__ import annotations

from workers.training import coverage
from workers.training.coverage import choose, counts, pairs


def test_pairs_span_words_and_marks():
    assert pairs("ab a.") == {"ab", "b ", " a", "a."}


def test_lines_with_rare_pairs_come_first():
    lines = [("ababab", 0)] * 100 + [("abx", 0), ("abab", 0)]
    assert 100 in choose(lines, {0: 5})


def test_a_pair_heard_often_enough_has_no_more_lines_picked_for_it(monkeypatch):
    monkeypatch.setattr(coverage, "OFTEN_ENOUGH", 2)
    lines = [("ab", 0)] * 20 + [("xy", 0)] * 10
    assert choose(lines, {0: 12}) == [*range(10), 20, 21]


def test_quotas_hold_for_each_group():
    lines = [("ab", 0), ("xy", 1), ("qz", 1), ("cd", 1), ("ef", 2)]
    taken = choose(lines, {0: 3, 1: 2})
    assert taken[0] == 0 and len(taken) == 3 and 4 not in taken


def test_counts_are_of_every_occurrence():
    phonemes, paired = counts(["aab", "ab"])
    assert phonemes == {"a": 3, "b": 2} and paired == {"aa": 1, "ab": 2}
