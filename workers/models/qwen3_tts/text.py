"""Text as people send it: what of it can be spoken."""

from __future__ import annotations

import re
import unicodedata

_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# A letter or digit that is shown as an emoji: keycaps, and what a variation selector makes one.
_SHOWN_AS_EMOJI = re.compile(".(?:\ufe0f\u20e3?|\u20e3)")


def without_controls(text: str) -> str:
    """The text without control characters, but for tabs and line ends: they are no words, and have tokens."""
    return _CONTROLS.sub("", text)


def has_words(text: str) -> bool:
    """Whether there is something to say: a letter or a digit that is not part of an emoji."""
    return any(unicodedata.category(character)[0] in "LN" for character in _SHOWN_AS_EMOJI.sub("", text))
