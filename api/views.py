"""Jobs and events as JSON. Times are Unix seconds by the broker's clock."""

from __future__ import annotations

import base64
from typing import Any

from broker_schemas import shown
from broker_schemas.codec import Tensor
from broker_schemas.contract import Contract
from broker_schemas.events import Event
from broker_schemas.job import JobState


def job_view(state: JobState, contract: Contract | None) -> dict[str, Any]:
    """What GET /v1/jobs/{id} answers, but for the queue position. `contract` is None for a model not served here.

    Raises BrokenLog.
    """
    request = state.requested
    links = {name: f"/v1/jobs/{state.id}{path}" for name, path in _LINKS.items()}
    return {
        "id": state.id,
        "object": "job",
        "status": state.status.value,
        "model": request.model,
        "input": request.input,
        "params": request.params,
        # By name: the model's own or an uploaded one; None where the request brought a recording, or has no voice.
        "voice": request.extra.get("voice") or request.params.get("voice") or None,
        "seed": request.seed,
        "response_format": request.extra.get("response_format"),
        "user": request.extra.get("user"),
        "metadata": request.extra.get("metadata"),
        "webhook": request.extra.get("webhook"),
        "traceparent": request.traceparent,
        "frames": state.frames,
        "chunks": state.chunks,
        "samples": state.samples,
        "sample_rate": contract.sample_rate if contract else None,
        "channels": contract.channels if contract else None,
        "audio_seconds": state.samples / contract.sample_rate if contract else None,
        "reason": state.reason,
        "timings": _timings(state),
        "attempts": state.attempts,
        "error": shown.error(state),
        "cancelled_by": state.cancelled_by,
        "deadline_at": request.deadline / 1000,
        # Until the job is final: when it will be gone at the latest.
        "expires_at": ((state.ended_at or request.deadline) + request.ttl_ms) / 1000,
        "links": links,
    }


def unreadable_view(job: str, requested_at: int, why: str) -> dict[str, Any]:
    """A job of the list whose log this program cannot read."""
    message = f"This job's log cannot be read: {why}. Upgrade songline, or forget the job: DELETE with ?purge=true."
    return {
        "id": job,
        "object": "job",
        "status": None,
        "model": None,
        "audio_seconds": None,
        "timings": {"requested_at": requested_at / 1000},
        "error": {"code": "log_unreadable", "message": message, "retryable": False},
        "links": {"self": f"/v1/jobs/{job}"},
    }


_LINKS = {"self": "", "events": "/events", "stream": "/stream", "ws": "/ws", "audio": "/audio", "cancel": ""}


def _timings(state: JobState) -> dict[str, Any]:
    def seconds(at: int | None) -> float | None:
        return None if at is None else at / 1000

    return {
        "requested_at": seconds(state.requested_at),
        "admitted_at": {role: seconds(at) for role, at in state.admitted_at.items()},
        "first_audio_at": seconds(state.first_chunk_at),
        "ended_at": seconds(state.ended_at),
        **shown.durations(state),
    }


def event_view(event: Event) -> dict[str, Any]:
    """One event of the log; unknown fields and types included."""
    return {
        "v": event.v,
        "type": event.type,
        "job": event.job,
        "seq": event.seq,
        "at": event.at / 1000,
        "by": event.by,
        "data": shown.plain(event.data, tensor=_with_values, raw=_in_base64),
    }


def _with_values(tensor: Tensor) -> dict[str, Any]:
    shape = shown.shape(tensor)
    return shape if tensor.dtype == "bfloat16" else shape | {"values": tensor.numpy().tolist()}


def _in_base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
