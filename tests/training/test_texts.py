"""The choice of texts: lengths, shares, nothing twice, nothing held out, the same for the same seed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.training.words import VOCABULARY
from workers.training import report, templates, texts
from workers.training.lines import Line, read, write
from workers.training.sentences import band, clean, words
from workers.training.sources import SOURCES, Source
from workers.training.templates import TEMPLATES
from workers.training.texts import HeldOut, Phonemiser, Texts, TooFewTexts, held_and_learnt, interleave, quotas

COUNT = 200


def source(name: str, weight: float = 1) -> Source:
    return Source(name, "pypi", name, "MIT", name, weight, lambda _: iter(()))


def passages(name: str, count: int = 400):
    """Sentences of 1 to 60 words, no two alike; but every other one is nearly the one before."""
    for number in range(count):
        yield " ".join(f"{name}{number // 2}x{place}" for place in range(number % 60)) + f" {name}{number}."


def spell(of):
    """Stands in for the teacher."""
    return [(text.lower(),) for text in of]


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(texts, "VALIDATION", 20)


def chosen(seed: int, held_out: HeldOut, *, sources: int = 2) -> tuple[list[Line], list[Line]]:
    candidates = Texts(seed, VOCABULARY, held_out)
    for number in range(sources):
        candidates.read(source(f"book{number}"), passages(f"book{number}"))
    return held_and_learnt(candidates, held_out, COUNT, spell)


def test_lengths_and_the_share_of_made_lines_are_as_stated(few):
    valid, train = chosen(1, HeldOut())
    assert len(valid) == 20 and len(train) == COUNT
    of_band = Counter(band(line.text) for line in train)
    assert [of_band[place] for place in range(5)] == quotas(COUNT) == [20, 40, 90, 40, 10]
    made = Counter(band(line.text) for line in train if line.origin in TEMPLATES)
    assert [made[place] for place in range(5)] == [5, 10, 22, 10, 2]


def test_where_too_few_lines_can_be_read_more_are_made(few):
    _, train = chosen(1, HeldOut(), sources=0)
    assert len(train) == COUNT and all(line.origin in TEMPLATES for line in train)


def test_a_seed_chooses_the_same_lines_and_another_seed_others(few):
    assert chosen(1, HeldOut()) == chosen(1, HeldOut())
    assert chosen(1, HeldOut()) != chosen(2, HeldOut())


def test_no_line_is_there_twice(few):
    valid, train = chosen(1, HeldOut())
    assert len({line.text for line in (*valid, *train)}) == len({line.id for line in (*valid, *train)}) == COUNT + 20


def runs(text: str) -> set[tuple[str, ...]]:
    spoken = texts.normal(text)
    return {spoken[start : start + 6] for start in range(max(1, len(spoken) - 5))}


def test_no_line_shares_six_words_in_a_row_with_one_held_out(few):
    test = ["Book0x. The bus leaves at dawn for Kyoto.", *list(passages("book1"))[20:60]]
    valid, train = chosen(1, HeldOut(test))
    held = {run for text in (*test, *(line.text for line in valid)) for run in runs(text)}
    assert not [line for line in train if not held.isdisjoint(runs(line.text))]
    assert held.isdisjoint({run for line in train for run in runs(line.text)})


def test_near_copies_are_those_with_a_run_of_six_words_or_short_and_whole():
    held_out = HeldOut(["One two three four five six seven.", "Go home!"])
    assert "So: two, three four five SIX seven" in held_out and "go home" in held_out
    assert "two three four five six" not in held_out and "Go home now." not in held_out


def test_validation_lines_made_from_templates_are_held_out_too(few):
    held_out = HeldOut()
    valid, _ = chosen(1, held_out)
    assert any(line.origin in TEMPLATES for line in valid) and all(line.text in held_out for line in valid)


def test_a_line_is_given_once():
    candidates = Texts(1, VOCABULARY, HeldOut())
    candidates.read(source("book"), passages("book"))
    first, then = candidates.take_read(2, 30), candidates.take_read(2, 30)
    assert len({line.id for line in (*first, *then)}) == 60


def test_lines_made_from_templates_are_never_near_to_one_held_out(monkeypatch):
    monkeypatch.setattr(templates, "TEMPLATES", {"word": ("Stop!", "Go!")})
    (line,) = Texts(1, VOCABULARY, HeldOut(["Stop."])).generate(0, 1, "train")
    assert line.text == "Go!"


def test_templates_that_run_out_are_an_error(monkeypatch):
    monkeypatch.setattr(templates, "TEMPLATES", {"word": ("Stop!", "Go!")})
    with pytest.raises(TooFewTexts, match="2 of 3 lines of 1 to 3 words"):
        Texts(1, VOCABULARY, HeldOut()).generate(0, 3, "train")


def test_sources_are_mixed_after_their_weights_as_long_as_they_last():
    much, little = source("much", 3), source("little", 1)
    by_source = {of: [Line(f"{of.name}-{number}", "") for number in range(30)] for of in (much, little)}
    assert Counter(line.origin for line in interleave(by_source)[:20]) == {"much": 15, "little": 5}
    assert len(interleave(by_source)) == 60


def test_a_line_that_the_teacher_cannot_read_is_left_out(few):
    candidates = Texts(1, VOCABULARY, HeldOut())
    candidates.read(source("book"), passages("book"))
    _, train = held_and_learnt(
        candidates, HeldOut(), COUNT, lambda of: [() if "7x" in text else (text,) for text in of]
    )
    assert train and not [line for line in train if "7x" in line.text]


def test_lines_are_read_as_they_were_written(tmp_path):
    lines = [Line("austen-000001", "It is a truth.", ("Its@.",)), Line("date-000002", "May 5?", ("mA fIf?",))]
    write(tmp_path / "train.tsv", lines)
    assert (tmp_path / "train.tsv").read_text("utf-8").splitlines()[1] == "date-000002\tMay 5?\tmA fIf?"
    assert read(tmp_path / "train.tsv") == lines


def test_the_test_lines_are_a_hundred_of_all_kinds_and_lengths_and_clean():
    held = texts.read_held_out(texts.HELD_OUT)
    assert len(held) == len({line.text for line in held}) == 100
    kinds = {line.origin.removeprefix("test-") for line in held}
    assert kinds >= TEMPLATES.keys() - {"quantity", "statement"} | {"plain", "word", "ordinal", "unit", "long"}
    assert all(clean(line.text) == line.text for line in held)
    assert {band(line.text) for line in held} == {0, 1, 2, 3, 4}
    lengths = [len(words(line.text)) for line in held]
    assert min(lengths) == 1 and max(lengths) == 60


def test_the_report_has_every_source_with_its_licence_and_the_hours():
    line = Line("austen-000001", "One two three four.", ("a" * 16 * 3600,))
    described = report.describe([line] * 2)
    assert "| 2 | austen |" in described and "| 1 | date |" in report.describe([Line("date-000001", "May.", "mA.")])
    assert "about 2.0 hours" in described and "| 4 to 8 | 2 | 100.0% |" in described
    assert f"{2 * 16 * 3600:,} phonemes of 1 kinds; 1 kinds of pairs, 1 of them in fewer than 30 lines" in described
    for entry in SOURCES:
        assert f"| {entry.name} | {entry.licence} | {entry.origin} |" in described


def test_sentences_of_a_line_are_read_apart():
    (spoken,) = Phonemiser(1)(["Hello there. It is $5!"])
    assert len(spoken) == 2 and spoken[0].endswith(".") and spoken[1].endswith("z!")
