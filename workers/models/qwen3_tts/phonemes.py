"""The text front end: what is spoken, as phonemes. It is the package `hibari-tts`, without its acoustic model."""

from __future__ import annotations

import json
from importlib.resources import files


def alphabet() -> frozenset[str]:
    """The characters that a reading may have: phonemes, stress, punctuation, the space."""
    return frozenset(json.loads((files("hibari") / "assets" / "vocab.json").read_text(encoding="utf-8")))
