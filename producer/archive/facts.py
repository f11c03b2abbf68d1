"""What is kept of a job beside its sound. All of it is a function of the log up to the job's end."""

from __future__ import annotations

from typing import Any

from broker_schemas import shown
from broker_schemas.events import Event, JobRequested
from producer.archive.ended import Ended

VERSION = 1
_UNTOLD = ("webhook",)  # its URL may let people in


def facts_of(ended: Ended) -> dict[str, Any]:
    """As JSON takes it. Times are Unix seconds by the broker's clock; `at` of an event is from the request on."""
    state = ended.state
    return {
        "v": VERSION,
        "id": state.id,
        "status": state.status.value,
        "owner": state.requested.owner,
        "model": state.requested.model,
        "seed": state.requested.seed,
        "request": _request(state.requested),
        "profiles": state.profiles,
        "attempts": state.attempts,
        "frames": state.frames,
        "reason": state.reason,
        "looped": state.looped,
        "timings": {
            "requested_at": state.requested_at / 1000,
            "ended_at": None if state.ended_at is None else state.ended_at / 1000,
            **shown.durations(state),
        },
        "error": shown.error(state),
        "cancelled_by": state.cancelled_by,
        "events": [_told(event, state.requested_at) for event in ended.events],
    }


def _request(request: JobRequested) -> dict[str, Any]:
    """A recording that it clones is in the params by its sha256 alone."""
    extra = {name: value for name, value in request.extra.items() if name not in _UNTOLD}
    return {"input": request.input, "params": _plain(request.params), **_plain(extra)}


def _told(event: Event, began: int) -> dict[str, Any]:
    asks = isinstance(event.payload, JobRequested)
    return {
        "seq": event.seq,
        "at": (event.at - began) / 1000,
        "type": event.type,
        "by": event.by,
        "data": {} if asks else _plain(event.data),
    }


def _plain(value: Any) -> Any:
    """Of tensors, such as a voice's or the codes, their shape alone."""
    return shown.plain(value, tensor=shown.shape, raw=lambda raw: {"bytes": len(raw)})
