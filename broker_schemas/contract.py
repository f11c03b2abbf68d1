"""What a model promises to the api: which requests it takes, and what it makes of them.

A family in `workers/models` implements it; `compose` hands it to the api, which knows no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """What a family implements, as a subclass: what has a value here may be left out.

    A model that clones takes a recording of a voice. The api gives it `ref_audio` as the sha256 of the recording that a
    request brought, or `voice` as the name of an uploaded one that is there, with its transcript as `ref_text`; the
    order's params then name the recording alone, by `ref_audio`.
    """

    model: str  # the name that requests use
    sample_rate: int  # Hz, of the audio stream
    channels: int
    frame_rate: float  # talker frames a second
    fields: frozenset[str]  # the request fields that mean something to the model, besides model, input and seed
    tolerated: frozenset[str] = frozenset()  # fields that may be there too, as long as they ask for nothing
    voices: Sequence[str] = ()  # of the model's own, by the names that requests use
    clones: bool = False

    def accept(self, body: Mapping[str, Any]) -> Order:
        """The order for a request body (OpenAI's speech request and the model's own fields); raises BadField."""
        ...
