"""How a long text is cut into passages: whole sentences, as many as are spoken well in one breath of the model.

A pure function of the text. Joined, the passages are the text.
"""

# ruff: noqa: RUF001, the signs are of many scripts

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

LENGTH = 300  # what a passage weighs at most: letters of Latin text, of which about fifteen are spoken in a second
SPARE = 100  # what the last one may weigh more, so that no text ends in a snippet
LEAST = 60  # a cut that leaves less before it is taken only where there is no other
_DENSE = 3  # what a character weighs that says a syllable or more

_CLOSERS = "\"'”’»›)]}」』）】》〉〕］｝"
# These end a sentence whatever follows; a full stop and its like only before white space. No pattern looks at a run of
# characters twice: a request may hold fifty thousand of one kind.
_ENDS = re.compile(rf"(?:[。！？｡।॥؟۔։።។။‼⁇⁈⁉]|．(?!\d))++[{re.escape(_CLOSERS)}]*+\s*+")
_STOPS = re.compile(rf"(?<![.!?…])(?P<marks>[.!?…]++)[{re.escape(_CLOSERS)}]*+\s++")
_SPACES = re.compile(r"\s++")
_LINE_END = re.compile(r"[\r\n\u2028\u2029]")
_CLAUSES = re.compile(
    rf"[，、；：،؛]++[{re.escape(_CLOSERS)}]*+\s*+|(?<![,;:])[,;:]++[{re.escape(_CLOSERS)}]*+\s++"
    r"|(?<![)\]])[)\]]++\s++|[—–]++\s*+"
)
_WORD_BEFORE = re.compile(r"[\w.\u2019'-]*\Z")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]\Z")  # "J", "U.S", "z.B"
_NUMERAL = re.compile(r"\d{1,2}\Z")  # "1. First", "am 3. Mai"
# They stand before a name, or before a number, and end no sentence there.
_TITLES = frozenset(
    {"dr", "mr", "mrs", "ms", "mx", "prof", "st", "rev", "gen", "col", "lt", "sgt", "capt", "hon", "gov", "sen", "rep"}
    | {"pres", "mt", "ft", "vs", "ca", "cf", "hr", "fr", "bzw", "vgl", "mgr", "sr", "sra", "dra", "ud", "sig", "dott"}
    | {"г", "ул", "им", "см"}
)
_COUNTED = frozenset(
    {"no", "nos", "nr", "fig", "vol", "p", "pp", "art", "sec", "ch", "abs", "núm", "pág", "стр", "рис", "гл"}
)

_BEFORE_MODIFIER = frozenset(chr(code) for code in range(0x1F3FB, 0x1F400))
_JOINER = "\u200d"
_TAGS = (0xE0020, 0xE007F)
_REGIONS = (0x1F1E6, 0x1F1FF)
_JAMO = ((0x1160, 0x11FF), (0xD7B0, 0xD7FB))  # vowels and finals, which follow what they belong to


def split(text: str) -> list[str]:
    """The text's passages, at least one: slices that make up the text, white space at the cuts with what is before."""
    weights = [0, *accumulate(_weight(character) for character in text)]
    ranked = [_places(text, cuts) for cuts in (_sentences(text), _ends(_CLAUSES, text), _ends(_SPACES, text))]
    passages, start = [], 0
    while weights[-1] - weights[start] > LENGTH + SPARE:
        end = _cut(text, start, weights, ranked)
        passages.append(text[start:end])
        start = end
    return [*passages, text[start:]]


def _weight(character: str) -> int:
    if unicodedata.east_asian_width(character) in "WF" or unicodedata.category(character) == "Nd":
        return _DENSE
    return 1


def _places(text: str, cuts: Iterator[int]) -> list[int]:
    """Rising, and without those before a sign that belongs to what stands before it."""
    return sorted(place for place in {*cuts} - {len(text)} if _is_boundary(text, 0, place))


def _cut(text: str, start: int, weights: list[int], ranked: list[list[int]]) -> int:
    """Where the passage from `start` ends: at the last of the best places there are."""
    furthest = bisect_right(weights, weights[start] + LENGTH) - 1
    least = bisect_right(weights, weights[start] + LEAST)
    for cuts in ranked:
        place = bisect_right(cuts, furthest) - 1
        if place >= 0 and cuts[place] >= least:
            return cuts[place]
    boundaries = (end for end in range(furthest, least - 1, -1) if _is_boundary(text, start, end))
    return next(boundaries, furthest)  # a grapheme as long as a passage is none


def _ends(pattern: re.Pattern[str], text: str) -> Iterator[int]:
    return (match.end() for match in pattern.finditer(text))


def _sentences(text: str) -> Iterator[int]:
    """Where sentences end, with the white space after them."""
    yield from _ends(_ENDS, text)
    for match in _STOPS.finditer(text):
        if not text[match.end() : match.end() + 1].islower() and not _is_abbreviation(text, match):
            yield match.end()
    for match in _SPACES.finditer(text):
        wrapped = match[0].strip(" \t") in ("\n", "\r\n") and text[match.end() : match.end() + 1].islower()
        if _LINE_END.search(match[0]) and not wrapped:
            yield match.end()


def _is_abbreviation(text: str, stop: re.Match[str]) -> bool:
    if stop["marks"] != ".":
        return False
    before = _WORD_BEFORE.search(text, max(0, stop.start() - 20), stop.start())
    assert before is not None  # be it of no letters
    word = before[0].lower()
    if word in _COUNTED:
        return text[stop.end() : stop.end() + 1].isdigit()
    return word in _TITLES or bool(_INITIALS.match(word) or _NUMERAL.match(word))


def _is_boundary(text: str, start: int, place: int) -> bool:
    """Whether a cut here parts no grapheme, where none does at `start`. Errs on the side of what belongs together."""
    before, after = text[place - 1], text[place]
    if unicodedata.category(after)[0] == "M" or _JOINER in (before, after) or after in _BEFORE_MODIFIER:
        return False
    if unicodedata.combining(before) == 9 or (before, after) == ("\r", "\n"):  # a virama joins two consonants
        return False
    code = ord(after)
    if _TAGS[0] <= code <= _TAGS[1] or any(first <= code <= last for first, last in _JAMO):
        return False
    if not _REGIONS[0] <= code <= _REGIONS[1]:
        return True
    letters = 0  # of flags right before: two make one
    while place - letters > start and _REGIONS[0] <= ord(text[place - 1 - letters]) <= _REGIONS[1]:
        letters += 1
    return letters % 2 == 0
