"""Reading a request's fields: each value checked, or a BadField that says what to send. None stands for left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from broker_schemas.contract import BadField
from workers.models.qwen3_tts.text import has_words, without_controls


def spoken_text(body: Mapping[str, Any], name: str, at_most: int) -> str:
    """A text that must be there and have words."""
    text = body.get(name)
    if not isinstance(text, str) or not text.strip():
        raise BadField(name, f"{name} must hold the words: a string that is not empty.")
    text = clean(text, name, at_most)
    if not has_words(text):
        raise BadField(name, f"{name} has no words to say: send at least a letter or a digit beside its signs.")
    return text


def clean(text: str, name: str, at_most: int) -> str:
    """The text of field `name` without control characters; at most `at_most` characters were sent."""
    if len(text) > at_most:
        raise BadField(name, f"{name} is {len(text):,} characters long: shorten it to {at_most:,}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{name} holds half a surrogate pair at character {error.start}: send whole characters."
        raise BadField(name, message) from None
    return without_controls(text)


def flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise BadField(name, f"{name} must be true or false.")
    return value


def whole(body: Mapping[str, Any], name: str, default: int, at_least: int, at_most: int, meaning: str = "") -> int:
    """A whole number; `meaning` is told with the refusal."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= at_most:
        why = f" ({meaning})" if meaning else ""
        raise BadField(name, f"{name} must be a whole number, {at_least:,} to {at_most:,}{why}.")
    return value


def number(body: Mapping[str, Any], name: str, default: float, at_most: float, instead: str = "") -> float:
    """A number above zero; an int too, as clients write 1 for 1.0. `instead`: what else to do, for the refusal."""
    value = body.get(name)
    if value is None:
        return float(default)
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not usable or not 0 < value <= at_most:
        raise BadField(name, f"{name} must be a number above 0 and at most {at_most:g}{instead}.")
    return float(value)
