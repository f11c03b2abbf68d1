"""From running text to single lines fit to be read aloud: folded, split, refused or finished."""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Container, Iterator

MAX_WORDS = 60
MAX_WORD_CHARS = 24
JOINED = 0.2  # of a passage's sentences, these go on a line together with the next one

BANDS = ((1, 3, 0.10), (4, 8, 0.20), (9, 20, 0.45), (21, 35, 0.20), (36, MAX_WORDS, 0.05))
"""Lengths in words, first and last, and the share of lines that has them."""

FOLDED = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u00b4", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2012\u2013\u2015\u2212", "—"),
        **dict.fromkeys("\u2010\u2011", "-"),
        "\u2026": "...",
        "\u00ad": "",
    }
)
ALLOWED = re.compile(r"[A-Za-z0-9 .,;:?!'\"—()&%$£€°@#/+-]+")
REFUSED = re.compile(
    r"://|\bwww\.|\.(?:com|org|net|py|html?|txt)\b"  # addresses and files
    r"|[:;]-?[)(DPp](?:\W|$)|\bx[dD]\b"  # emoticons
    r"|([A-Za-z])\1\1|[?!.,]{4}|[a-z][A-Z]\w*[A-Z]|\w\(\)|\w\.\w+\.\w{3}|--|[@#/+&—-]{2}"  # noises and code
    r"|^\W*[A-Z]{2}[A-Z'-]* [A-Z' -]+\W*$|[A-Z]{7}|''|\.:| /|/ |\b(?:n|v|vi|vt|adj|adv|excl)\.$"  # headings, labels
)
WORD = re.compile(r"[^ —]*[^\W_][^ —]*")
ACCENTS = re.compile(r"[\u0300-\u036f]")
EMAIL = re.compile(r"[\w.]+@[\w.]+")
ABBREVIATED = re.compile(
    r"Mr|Mrs|Ms|Dr|Prof|St|Rev|Hon|Capt|Col|Gen|Lt|Sgt|Sen|Gov|Rep|Jr|Sr|vs|etc|No|Vol|Fig|Mt|Esq|e\.g|i\.e|cf"
    r"|(?:[A-Z]\.)*[A-Z]"  # initials
)
SENTENCE_END = re.compile(r"[.?!]+[\"')]*\s+(?=[\"'(]*[A-Z0-9])")
QUESTION = re.compile(
    r"(?:(?:so|and|but|oh|well|ok|okay|hey|wow|haha),? )?"
    r"(?:who|whose|what|when|where|why|which|how|do|does|did|are|is|was|were|can|could|would|will|should|have|has) "
    r"(?:you|your|we|it|that|this|they|he|she|i|the|there|do|does|did|is|are|was|many|much|long|about|kind|a|an)\b",
    re.I,
)


def fold(text: str) -> str:
    """Text on one line, its quotes, dashes and accents those of ASCII but for the long dash."""
    text = re.sub(r"(?<=[a-z])-\s*\n\s*(?=[a-z])", "-", text.translate(FOLDED))
    text = re.sub(r"\s*---?\s*", "—", text)
    if not text.isascii():
        text = ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    return " ".join(text.split())


def split(passage: str) -> Iterator[str]:
    """The sentences of a folded passage; titles and initials end none."""
    start = 0
    for end in SENTENCE_END.finditer(passage):
        last = passage[start : end.start()].rpartition(" ")[2].lstrip("\"'(")
        if passage[end.start()] == "." and ABBREVIATED.fullmatch(last):
            continue
        yield passage[start : end.end()].strip()
        start = end.end()
    yield passage[start:].strip()


def words(text: str) -> list[str]:
    """The words of a text as they are counted: a number or an address is one."""
    return WORD.findall(text)


def normal(text: str) -> tuple[str, ...]:
    """What two copies of a text have in common: its words without case or punctuation."""
    return tuple(re.findall(r"[a-z0-9]+", text.lower().replace("'", "")))


def band(text: str) -> int | None:
    """Which of BANDS a text is in; None for one that is too long or empty."""
    count = len(words(text))
    return next((place for place, (first, last, _) in enumerate(BANDS) if first <= count <= last), None)


def unpaired(text: str) -> str:
    """The text without quotes or brackets that have no partner in it."""
    if text.count('"') % 2:
        text = text.replace('"', "")
    depth = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if depth not in (0, 1):
            break
    if depth:
        text = text.replace("(", "").replace(")", "")
    return re.sub(r" +", " ", text).strip()


def finish(text: str) -> str:
    """The text from a capital letter to a mark that ends it."""
    text = text.lstrip(" ,;:—.)-/").rstrip(" ,;:—-(/")
    text = re.sub(r"^(\W*)([a-z])(?![\w.]*@)", lambda start: start[1] + start[2].upper(), text)
    text = re.sub(r"(?<!\.)\.\.(?!\.)", ".", text)
    text = re.sub(r"\bi(?='|\b(?![.@]))", "I", text)
    if re.search(r"[.?!][\"')]*$", text):
        return text
    return text + ("?" if QUESTION.match(text) else ".")


def clean(sentence: str, refused_words: Container[str] = frozenset()) -> str | None:
    """A sentence fit to be read aloud, or None: too long, markup, code, an address, noise, or a refused word."""
    folded = fold(sentence)
    text = finish(unpaired(folded))
    if not ALLOWED.fullmatch(text) or REFUSED.search(EMAIL.sub("", folded)) or band(text) is None:
        return None
    spoken = words(text)
    if max(map(len, spoken)) > MAX_WORD_CHARS and not EMAIL.search(text):
        return None
    if any(word in refused_words for word in normal(text)):
        return None
    return text


def lines(passage: str, rng: random.Random, refused_words: Container[str] = frozenset()) -> Iterator[str]:
    """The clean sentences of a passage; now and then two that follow each other are one line."""
    held = ""
    for text in (clean(sentence, refused_words) for sentence in split(fold(passage))):
        if held and text and len(words(held)) + len(words(text)) <= MAX_WORDS:
            yield f"{held} {text}"
            held = ""
            continue
        if held:
            yield held
        held = text if text and rng.random() < JOINED else ""
        if text and not held:
            yield text
    if held:
        yield held
