"""What a model promises to the api: which requests it takes, and what it makes of them.

A family in `workers/models` implements it; `compose` hands it to the api, which knows no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class BadField(ValueError):
    """A request's field cannot be served. `str()` says what to do about it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Order:
    """A request that the model can serve.

    `params` is all that the audio depends on besides model, input and seed; `reserve_bytes` the most that the job's
    keys may come to hold.
    """

    input: str
    params: dict[str, Any]
    max_frames: int
    reserve_bytes: int


class Contract(Protocol):
    model: str  # the name that requests use
    sample_rate: int  # Hz, of the audio stream
    channels: int
    frame_rate: float  # talker frames a second
    fields: frozenset[str]  # the request fields that mean something to the model, besides model, input and seed

    def accept(self, body: Mapping[str, Any]) -> Order:
        """The order for a request body (OpenAI's speech request and the model's own fields); raises BadField."""
        ...
