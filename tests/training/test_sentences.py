"""What a line of the training texts may be."""

from __future__ import annotations

import random

import pytest

from workers.training import sentences
from workers.training.sentences import band, clean, fold, lines, normal, split, words


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("\u201cIt\u2019s \u2018here\u2019\u2026\u201d", "\"It's 'here'...\""),
        ("one \u2013 two -- three—four", "one — two—three—four"),
        ("a café\n  in\tKöln", "a cafe in Koln"),
        ("self-\n  made", "self-made"),
        ("20\u00a0°C", "20 °C"),
    ],
)
def test_quotes_dashes_accents_and_spaces_are_folded(text, folded):
    assert fold(text) == folded


def test_sentences_end_at_marks_but_not_at_titles_or_initials():
    passage = 'Dr. Who met J. K. Lee at 3 p.m. on Main St. near it. "Why?" he asked. "Go!" No. 5 came.'
    assert list(split(passage)) == [
        "Dr. Who met J. K. Lee at 3 p.m. on Main St. near it.",
        '"Why?" he asked.',
        '"Go!"',
        "No. 5 came.",
    ]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("so it rained", "So it rained."),
        ("how are you", "How are you?"),
        ("i know i'm late, ", "I know I'm late."),
        ("and then;", "And then."),
        ('he said "go home', "He said go home."),
        ("(see below", "See below."),
        ('"Stop!" he cried, "now."', '"Stop!" he cried, "now."'),
        ("Room & Co..", "Room & Co."),
        ("anna@example.com called", "anna@example.com called."),
        ("It cost $1,250.50; that's 25% off!", "It cost $1,250.50; that's 25% off!"),
    ],
)
def test_a_line_runs_from_a_capital_to_a_mark(raw, text):
    assert clean(raw) == text


@pytest.mark.parametrize(
    "raw",
    [
        "See https://example.com/a for more.",
        "Look at www.example.com now.",
        "Open the file setup.py first.",
        "Call print() twice.",
        "The list [1, 2] is short.",
        "It is <b>bold</b> text.",
        "Use `code` here.",
        "That's so funny :)",
        "Nooooo way",
        "CHAPTER THE FIRST",
        "The total = 4 | 5.",
        "...",
        "A" + "a" * 3 + "h",
        "It is " + "x" + "yz" * 12 + ".",
        " ".join(["word"] * 61),
    ],
)
def test_markup_code_addresses_noise_and_what_is_too_long_are_refused(raw):
    assert clean(raw) is None


def test_a_refused_word_refuses_its_line_alone():
    assert clean("That Blasted car.", {"blasted"}) is None
    assert clean("That sandblasted car.", {"blasted"}) == "That sandblasted car."


def test_bands_cover_one_to_sixty_words_and_all_lines():
    counts = {1: 0, 3: 0, 4: 1, 8: 1, 9: 2, 20: 2, 21: 3, 35: 3, 36: 4, 60: 4}
    assert {count: band(" ".join(["word"] * count)) for count in counts} == counts
    assert band("...") is None and band(" ".join(["word"] * 61)) is None
    assert sum(share for *_, share in sentences.BANDS) == pytest.approx(1)


def test_words_part_at_spaces_and_long_dashes():
    assert words("A café—at 5:30 — isn't well-lit.") == ["A", "café", "at", "5:30", "isn't", "well-lit."]


def test_copies_have_the_same_normal_form():
    assert normal("Well, it's 5!") == normal("WELL it's 5") != normal("Well, it's 6!")


def test_lines_of_a_passage_keep_its_order_and_now_and_then_join_two():
    passage = " ".join(f"Sentence {number} is here." for number in range(300))
    out = list(lines(passage, random.Random(3)))
    assert " ".join(out) == passage
    joined = sum(line.count(".") == 2 for line in out)
    assert 30 < joined < 90 and joined + len(out) == 300


def test_a_sentence_that_is_refused_keeps_its_neighbours_apart():
    passage = "One is here. See [1] now. Two is here."
    assert {tuple(lines(passage, random.Random(seed))) for seed in range(20)} == {("One is here.", "Two is here.")}
