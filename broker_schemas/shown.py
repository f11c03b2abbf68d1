"""What is told of a job to whoever reads JSON: by the api, and in an archive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker_schemas.codec import Tensor
from broker_schemas.job import JobState


def durations(state: JobState) -> dict[str, float | None]:
    """Seconds from the request on, None for what has not come about."""

    def since_request(at: int | None) -> float | None:
        return None if at is None else (at - state.requested_at) / 1000

    return {
        "queued_s": since_request(state.admitted_at.get("talker")),
        "first_audio_s": since_request(state.first_chunk_at),
        "total_s": since_request(state.ended_at),
    }


def error(state: JobState) -> dict[str, Any] | None:
    """Why the job failed; None where it did not."""
    failed = state.error
    if failed is None:
        return None
    return {"code": failed.code, "message": failed.message, "retryable": failed.retryable}


def plain(value: Any, *, tensor: Callable[[Tensor], Any], raw: Callable[[bytes], Any]) -> Any:
    """An event's data as JSON takes it; `tensor` and `raw` say what becomes of tensors and bytes."""
    match value:
        case Tensor():
            return tensor(value)
        case dict():
            return {str(name): plain(item, tensor=tensor, raw=raw) for name, item in value.items()}
        case list() | tuple():
            return [plain(item, tensor=tensor, raw=raw) for item in value]
        case bytes():
            return raw(value)
        case None | bool() | int() | float() | str():
            return value
    return repr(value)  # an extension type of a newer version


def shape(tensor: Tensor) -> dict[str, Any]:
    """A tensor without its values."""
    return {"dtype": tensor.dtype, "shape": list(tensor.shape)}
