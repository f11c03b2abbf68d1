"""Sentences from templates are whole, fit to be read, and the same for the same seed."""

from __future__ import annotations

import random

import pytest

from tests.training.words import VOCABULARY
from workers.training import templates
from workers.training.sentences import clean, words
from workers.training.templates import SLOT, SLOTS, TEMPLATES, an, generate, ordinal


@pytest.mark.parametrize("kind", TEMPLATES)
def test_every_template_makes_a_clean_line(kind, monkeypatch):
    for template in TEMPLATES[kind]:
        monkeypatch.setitem(TEMPLATES, kind, (template,))
        made = [clean(templates.sentence(kind, random.Random(seed), VOCABULARY)) for seed in range(20)]
        assert all(made), template
        assert not any("{" in text or "  " in text for text in made), template


def test_every_slot_is_used_and_known():
    used = {slot for of_kind in TEMPLATES.values() for template in of_kind for slot in SLOT.findall(template)}
    parts = {
        "month_short",
        "street",
        "company_kind",
        "unit",
        "length",
        "mail_host",
        "number_word",
        "ordinal_word",
        "opener",
    }
    assert used | parts == set(SLOTS)


@pytest.mark.parametrize(("at_least", "at_most"), [(1, 3), (4, 8), (9, 20), (21, 35), (36, 60)])
def test_lengths_are_those_asked_for(at_least, at_most):
    rng = random.Random(1)
    for _ in range(100):
        kind, text = generate(rng, VOCABULARY, at_least, at_most)
        assert kind in TEMPLATES and at_least <= len(words(text)) <= at_most


def test_a_seed_makes_the_same_sentences():
    first, again, other = ([generate(rng, VOCABULARY, 1) for _ in range(30)] for rng in map(random.Random, (1, 1, 2)))
    assert first == again != other


def test_numbers_have_their_endings():
    endings = {1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 112: "112th"}
    assert {number: ordinal(number) for number in endings} == endings


def test_an_stands_before_vowels():
    assert an("A old car, a new one, a eulogy, a FBI man, a one") == "An old car, a new one, a eulogy, a FBI man, a one"
