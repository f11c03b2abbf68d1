"""A few words for templates."""

from __future__ import annotations

from workers.training.templates import Vocabulary

VOCABULARY = Vocabulary(
    first_names=("Ada", "Boris", "Chloe", "Dmitri", "Eve"),
    last_names=("Adams", "Baker", "Cole", "Doyle", "Eastman"),
    states=("Ohio", "Utah", "Maine"),
    countries=("Peru", "Kenya", "Japan"),
    jobs=("engineer", "baker", "tax adviser"),
    nouns=("anchor", "basket", "candle", "door", "engine", "feather", "garden", "hammer", "island", "jacket"),
    adjectives=("able", "big", "calm", "dark", "eager", "faint", "green", "heavy"),
    verbs=("ask", "bring", "carry", "draw", "enter", "find", "give", "hold"),
)
