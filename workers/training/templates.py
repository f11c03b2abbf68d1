"""Sentences made from templates: what books seldom say and people have read aloud, from prices to phone numbers.

A template is a text whose `{slots}` are drawn one by one: `The bus leaves at {time}.` They are in templates.yaml.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase

import yaml

from workers.training.sentences import MAX_WORDS, words

FILE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
TEMPLATES: dict[str, list[str]] = FILE["templates"]
WORDS: dict[str, list[str]] = FILE["words"]

OPENED = 0.15  # of the sentences that may have an opener, these have one
OPENABLE = re.compile(r"(The|It|We|There|That|Is|You|Please|If|My|Between|At) ")
SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words that slots are filled with."""

    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    states: tuple[str, ...]
    countries: tuple[str, ...]
    jobs: tuple[str, ...]
    nouns: tuple[str, ...]
    adjectives: tuple[str, ...]
    verbs: tuple[str, ...]


def ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def date(rng: random.Random) -> str:
    day, year = rng.randint(1, 28), rng.randint(1700, 2040)
    month, short = rng.choice(WORDS["month"]), rng.choice(WORDS["month_short"])
    return rng.choice(
        (
            f"{month} {day}",
            f"{month} {ordinal(day)}",
            f"{month} {day}, {year}",
            f"{short} {day}",
            f"{short} {ordinal(day)}, {year}",
            f"the {ordinal(day)} of {month}",
            f"{day} {month} {year}",
            f"{rng.choice(WORDS['day'])}, {month} {ordinal(day)}",
            f"{rng.randint(1, 12)}/{day}/{year}",
            f"{year}-{rng.randint(1, 12):02}-{day:02}",
        )
    )


def time(rng: random.Random) -> str:
    hour, minute = rng.randint(1, 12), rng.randint(0, 59)
    spelled_hour = rng.choice(WORDS["number_word"][:12])
    return rng.choice(
        (
            f"{hour}:{minute:02}",
            f"{hour}:{minute:02} {rng.choice(('a.m.', 'p.m.', 'AM', 'PM'))}",
            f"{hour} {rng.choice(('a.m.', 'p.m.'))}",
            f"{hour} o'clock",
            f"half past {spelled_hour}",
            f"{rng.choice(('quarter to', 'quarter past', 'ten to', 'five past'))} {spelled_hour}",
            f"{rng.randint(13, 23)}:{minute:02}",
            rng.choice(("noon", "midnight", "sunrise", "dusk", "lunchtime")),
        )
    )


def price(rng: random.Random) -> str:
    return rng.choice(
        (
            f"${rng.randint(1, 999)}",
            f"${rng.randint(1, 99)}.{rng.randint(1, 99):02}",
            f"${rng.randint(1, 99)}.99",
            f"${rng.randint(1, 999)},{rng.randint(0, 999):03}",
            f"${rng.randint(1, 99)}.{rng.randint(1, 9)} {rng.choice(('million', 'billion'))}",
            f"£{rng.randint(1, 500)}",
            f"£{rng.randint(1, 50)}.{rng.randint(1, 99):02}",
            f"€{rng.randint(1, 900)}",
            f"€{rng.randint(1, 90)}.50",
            f"{rng.randint(2, 99)} cents",
            f"{rng.choice(WORDS['number_word'])} dollars",
            f"{rng.randint(2, 900)} euros",
        )
    )


def number(rng: random.Random) -> str:
    return rng.choice(
        (
            str(rng.randint(0, 20)),
            str(rng.randint(21, 999)),
            str(rng.randint(1000, 9999)),
            f"{rng.randint(1, 999)},{rng.randint(0, 999):03}",
            f"{rng.randint(1, 9)},{rng.randint(0, 999):03},{rng.randint(0, 999):03}",
            f"{rng.randint(0, 99)}.{rng.randint(1, 99)}",
            f"{rng.randint(2, 90)} {rng.choice(('hundred', 'thousand', 'million'))}",
            rng.choice(WORDS["number_word"]),
        )
    )


def phone(rng: random.Random) -> str:
    area, line = rng.randint(201, 989), rng.randint(100, 199)
    return rng.choice(
        (
            f"{area}-555-0{line}",
            f"({area}) 555-0{line}",
            f"555-0{line}",
            f"1-800-555-0{line}",
            f"+1 {area} 555 0{line}",
            " ".join(str(rng.randint(0, 9)) for _ in range(rng.randint(4, 7))),
        )
    )


def amount(rng: random.Random) -> str:
    tenths = f"{rng.randint(0, 60)}.{rng.randint(1, 9)}"
    return rng.choice((str(rng.randint(2, 500)), tenths, rng.choice(WORDS["number_word"][1:])))


def temperature(rng: random.Random) -> str:
    return f"{rng.choice(('', '-', 'minus '))}{rng.randint(1, 110)}{rng.choice(('°C', '°F', ' degrees'))}"


def name(rng: random.Random, vocabulary: Vocabulary) -> str:
    first, last = rng.choice(vocabulary.first_names), rng.choice(vocabulary.last_names)
    title = rng.choice(("Mr.", "Mrs.", "Ms.", "Dr.", "Prof.", "Captain", "Professor", "Senator", "Aunt", "Judge"))
    return rng.choice(
        (
            first,
            f"{first} {last}",
            f"{first} {last}",
            f"{title} {last}",
            f"{first} {rng.choice(ascii_uppercase)}. {last}",
        )
    )


def place(rng: random.Random, vocabulary: Vocabulary) -> str:
    city = rng.choice(WORDS["city"])
    return rng.choice(
        (
            city,
            city,
            f"{city}, {rng.choice(vocabulary.states)}",
            rng.choice(vocabulary.states),
            rng.choice(vocabulary.countries),
        )
    )


def address(rng: random.Random, vocabulary: Vocabulary) -> str:
    street = f"{rng.randint(1, 9999)} {rng.choice(vocabulary.last_names)} {rng.choice(WORDS['street'])}"
    return rng.choice((street, f"{street}, Apt. {rng.randint(1, 99)}", f"{street}, {rng.choice(WORDS['city'])}"))


def company(rng: random.Random, vocabulary: Vocabulary) -> str:
    last, kind = rng.choice(vocabulary.last_names), rng.choice(WORDS["company_kind"])
    noun = rng.choice(vocabulary.nouns).capitalize()
    return rng.choice((f"{last} {kind}", f"{noun} {kind}", f"{last} and {rng.choice(vocabulary.last_names)}"))


def email(rng: random.Random, vocabulary: Vocabulary) -> str:
    first, last = rng.choice(vocabulary.first_names).lower(), rng.choice(vocabulary.last_names).lower()
    return f"{rng.choice((first, f'{first}.{last}', f'{first}{rng.randint(1, 99)}'))}@{rng.choice(WORDS['mail_host'])}"


def noun_list(rng: random.Random, vocabulary: Vocabulary) -> str:
    """`apples, pears, and plums`: three to eight things."""
    *first, last = rng.sample(vocabulary.nouns, min(rng.randint(3, 8), len(vocabulary.nouns)))
    return f"{', '.join(first)}{rng.choice((', and', ' and', ', or'))} {last}"


def spelled(rng: random.Random) -> str:
    return rng.choice(("-", ", ", " ")).join(rng.choice(ascii_uppercase) for _ in range(rng.randint(3, 6)))


Fill = Callable[[random.Random, Vocabulary], str]


def any_of(choices: list[str]) -> Fill:
    return lambda rng, _: rng.choice(choices)


SLOTS: dict[str, Fill] = {
    **{kind: any_of(choices) for kind, choices in WORDS.items()},
    "date": lambda rng, _: date(rng),
    "time": lambda rng, _: time(rng),
    "year": lambda rng, _: str(rng.randint(1066, 2060)),
    "decade": lambda rng, _: f"{rng.randint(170, 202)}0s",
    "price": lambda rng, _: price(rng),
    "number": lambda rng, _: number(rng),
    "small": lambda rng, _: str(rng.randint(2, 99)),
    "ordinal": lambda rng, _: rng.choice((ordinal(rng.randint(1, 120)), rng.choice(WORDS["ordinal_word"]))),
    "percent": lambda rng, _: rng.choice((f"{rng.randint(1, 100)}%", f"{rng.randint(0, 99)}.{rng.randint(1, 9)}%")),
    "quantity": lambda rng, _: f"{amount(rng)} {rng.choice(WORDS['unit'])}",
    "distance": lambda rng, _: f"{amount(rng)} {rng.choice(WORDS['length'])}",
    "temperature": lambda rng, _: temperature(rng),
    "phone": lambda rng, _: phone(rng),
    "letters": lambda rng, _: spelled(rng),
    "name": name,
    "first": lambda rng, vocabulary: rng.choice(vocabulary.first_names),
    "last": lambda rng, vocabulary: rng.choice(vocabulary.last_names),
    "place": place,
    "address": address,
    "company": company,
    "email": email,
    "job": lambda rng, vocabulary: rng.choice(vocabulary.jobs),
    "noun": lambda rng, vocabulary: rng.choice(vocabulary.nouns),
    "adjective": lambda rng, vocabulary: rng.choice(vocabulary.adjectives),
    "verb": lambda rng, vocabulary: rng.choice(vocabulary.verbs),
    "list": noun_list,
}


def an(text: str) -> str:
    """`a` before the sound of a vowel made `an`."""
    return re.sub(r"\b(a|^A)(?= (?:[aio]|e(?!u))[a-z])(?! one\b| once\b)", r"\1n", text)


def sentence(kind: str, rng: random.Random, vocabulary: Vocabulary) -> str:
    """One sentence of a kind of TEMPLATES."""
    text = an(SLOT.sub(lambda slot: SLOTS[slot[1]](rng, vocabulary), rng.choice(TEMPLATES[kind])))
    if "@" not in text.partition(" ")[0]:
        text = re.sub(r"^(\W*)([a-z])", lambda start: start[1] + start[2].upper(), text)
    if OPENABLE.match(text) and rng.random() < OPENED:
        return f"{rng.choice(WORDS['opener'])} {text[0].lower()}{text[1:]}"
    return text


def generate(rng: random.Random, vocabulary: Vocabulary, at_least: int, at_most: int = MAX_WORDS) -> tuple[str, str]:
    """A kind and a text of `at_least` to `at_most` words: a sentence, or as many as it takes."""
    while True:
        kind = rng.choice(tuple(TEMPLATES))
        text = sentence(kind, rng, vocabulary)
        while len(words(text)) < at_least:
            text = f"{text} {sentence(rng.choice(tuple(TEMPLATES)), rng, vocabulary)}"
        if len(words(text)) <= at_most:
            return kind, text
