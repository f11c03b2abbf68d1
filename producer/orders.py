"""Requests as the api takes them, of what a caller wants said or sung. What is None is left to the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SPEECH_MODEL = "qwen3_tts"
SONG_MODEL = "minimax_music3"


def speech(
    text: str,
    *,
    model: str = SPEECH_MODEL,
    voice: str | None = None,
    instructions: str | None = None,
    seed: int | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Text to be spoken. `instructions`: how, for models that take them. `fields`: the model's own."""
    return _given({"model": model, "input": text, "voice": voice, "instructions": instructions, "seed": seed} | fields)


def song(
    lyrics: str, *, caption: str | None = None, model: str = SONG_MODEL, seed: int | None = None, **fields: Any
) -> dict[str, Any]:
    """Lyrics to be sung. `caption`: what it is to sound like. `fields`: the model's own."""
    return _given({"model": model, "input": lyrics, "instructions": caption, "seed": seed} | fields)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
