"""Utterances for runners under test, as the contract resolves them: Qwen3-TTS at its tiny size."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from broker_schemas.contract import Contract
from broker_schemas.events import JobRequested
from tests.tiny_checkpoint import tiny_checkpoint
from workers.models.family import load_family
from workers.talker.frames import FrameHistory

MODEL = "qwen3_tts"
FRAMES = 20
CODEBOOKS = 16
POSITIONS = 512
TEXT = "The river keeps its own slow time."
# How requests may ask to be read and drawn; the first, as they do who do not ask.
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.4, "top_k": 0, "top_p": 0.7, "subtalker_top_k": 5, "voice": "vivian"},
    {"do_sample": False, "non_streaming_mode": False, "language": "French"},
    {"repetition_penalty": 2.5, "subtalker_temperature": 0.4, "subtalker_top_p": 0.6, "instructions": "In a whisper."},
)


@cache
def contract() -> Contract:
    return load_family(MODEL).contract(tiny_checkpoint(MODEL), POSITIONS)


def utterance(
    seed: int, *, job: str | None = None, frames: int = FRAMES, forced: np.ndarray | None = None, **asked: Any
) -> FrameHistory:
    """Each seed has a text of its own length and one of the WAYS; what is `asked` wins over both."""
    body = {"input": TEXT + " And on." * (seed % 5), **WAYS[seed % len(WAYS)], **asked, "max_new_tokens": frames}
    order = contract().accept(body)
    request = JobRequested(
        model=MODEL, input=order.input, params=order.params, seed=seed, owner="o", deadline=0, ttl_ms=1
    )
    forced = np.empty((0, CODEBOOKS), np.int16) if forced is None else forced
    return FrameHistory(job or f"job_{seed}", request, order.max_frames, lead=0, forced=forced)


def codes(history: FrameHistory) -> np.ndarray:
    """(frames, 16) int16."""
    return np.stack(history.codes)
