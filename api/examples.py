"""What /docs shows: request fields, answers and errors."""

from __future__ import annotations

from typing import Any

_ERRORS = {
    400: ("A field cannot be served", "invalid_request_error", "seed", "invalid_value"),
    401: ("The API key is missing or unknown", "authentication_error", None, "invalid_api_key"),
    404: ("No such job, or another owner's", "invalid_request_error", None, "job_not_found"),
    406: ("No acceptable format", "invalid_request_error", "Accept", "not_acceptable"),
    409: ("The job is not completed", "invalid_request_error", None, "job_not_completed"),
    410: ("The job has expired", "invalid_request_error", None, "job_expired"),
    413: ("The body is too large", "invalid_request_error", None, "body_too_large"),
    416: ("The range is outside the file", "invalid_request_error", "Range", "range_not_satisfiable"),
    422: ("The Idempotency-Key came with another body", "invalid_request_error", "Idempotency-Key",
          "idempotency_key_reused"),
    429: ("The queue is full; see Retry-After", "rate_limit_error", None, "queue_full"),
    503: ("The broker is away", "server_error", None, "broker_unavailable"),
}  # fmt: skip


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses for the errors that a route may answer."""
    answers: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        text, type_, param, code = _ERRORS[status]
        example = {"error": {"message": f"{text}.", "type": type_, "param": param, "code": code}}
        answers[status] = {"description": text, "content": {"application/json": {"example": example}}}
    return answers


def _body(*, stream_note: str, response_format: str) -> dict[str, Any]:
    properties = {
        "model": {"type": "string", "description": "One of GET /v1/models."},
        "input": {"type": "string", "description": "The text to speak, or the lyrics to sing."},
        "instructions": {"type": "string", "description": "How it is to sound; a song's caption."},
        "voice": {"type": "string", "description": "For models with voices; GET /v1/audio/voices lists them."},
        "ref_audio": {
            "type": "string",
            "description": "For models that clone, in place of voice: base64, a data: URI, or an https URL.",
        },
        "ref_text": {"type": "string", "description": "What the recording says; without it, the voice's own."},
        "seed": {"type": "integer", "minimum": 0, "description": "Same seed, same bytes. Drawn where it is missing."},
        "max_new_tokens": {"type": "integer", "minimum": 1, "description": "The most frames, for models that take it."},
        "response_format": {
            "type": "string", "enum": ["mp3", "opus", "flac", "wav", "pcm"], "default": response_format,
        },
        "stream": {"type": "boolean", "default": False, "description": stream_note},
        "stream_format": {"type": "string", "enum": ["sse", "audio"], "description": stream_note},
        "deadline_s": {"type": "number", "description": "Seconds until the job fails if it is not final by then."},
        "user": {"type": "string", "maxLength": 512},
        "metadata": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 16},
        "webhook": {
            "type": "string", "format": "uri", "maxLength": 2048, "example": "https://example.com/songline",
            "description": "Is sent the job by POST once it is completed, failed or cancelled: "
            '{"type": "job.completed", "timestamp": …, "data": {the job}}, signed as Standard Webhooks has it. '
            "Its host must be one that the operator allows.",
        },
    }  # fmt: skip
    schema = {
        "type": "object",
        "required": ["model", "input"],
        "properties": properties,
        "additionalProperties": {"description": "A model's own fields: GET /v1/models lists them."},
    }
    example = {
        "model": "qwen3_tts",
        "input": "The river wrote a letter to the sea.",
        "seed": 7,
    }
    content = {"application/json": {"schema": schema, "example": example}}
    return {"requestBody": {"required": True, "content": content}}


JOB_BODY = _body(stream_note="Taken and without effect: any job can be streamed.", response_format="wav")
SPEECH_BODY = _body(
    stream_note="sse: OpenAI's speech.audio events; audio: the file as it grows.", response_format="mp3"
)

JOB = {
    "id": "job_kq3x5wz2m4c6n7p2r5t7v2x4b6d7f2h4",
    "object": "job",
    "status": "sounding",
    "model": "qwen3_tts",
    "input": "The river wrote a letter to the sea.",
    "params": {"language": "Auto", "first_chunk_frames": 1, "max_new_tokens": 294},
    "voice": "heart",
    "seed": 7,
    "response_format": None,
    "user": None,
    "metadata": None,
    "webhook": None,
    "traceparent": None,
    "queue_position": None,
    "frames": 15,
    "chunks": 4,
    "samples": 28_800,
    "sample_rate": 24_000,
    "channels": 1,
    "audio_seconds": 1.2,
    "reason": None,
    "timings": {
        "requested_at": 1767225600.0, "admitted_at": {"talker": 1767225600.1}, "first_audio_at": 1767225600.3,
        "ended_at": None, "queued_s": 0.1, "first_audio_s": 0.3, "total_s": None,
    },
    "attempts": {"talker": 1, "acoustic": 1},
    "error": None,
    "cancelled_by": None,
    "deadline_at": 1767227400.0,
    "expires_at": 1767231000.0,
    "links": {
        "self": "/v1/jobs/job_kq3x5wz2m4c6n7p2r5t7v2x4b6d7f2h4",
        "events": "/v1/jobs/job_kq3x5wz2m4c6n7p2r5t7v2x4b6d7f2h4/events",
        "stream": "/v1/jobs/job_kq3x5wz2m4c6n7p2r5t7v2x4b6d7f2h4/stream",
        "ws": "/v1/jobs/job_kq3x5wz2m4c6n7p2r5t7v2x4b6d7f2h4/ws",
        "audio": "/v1/jobs/job_kq3x5wz2m4c6n7p2r5t7v2x4b6d7f2h4/audio",
        "cancel": "/v1/jobs/job_kq3x5wz2m4c6n7p2r5t7v2x4b6d7f2h4",
    },
}  # fmt: skip


def shown(description: str, example: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"example": example}}}


CHUNK_EVENTS = {
    "description": "The sound as it comes",
    "content": {
        "text/event-stream": {
            "example": 'id: 0\nevent: audio.chunk\ndata: {"index":0,"start_sample":0,"samples":1920,'
            '"sample_rate":24000,"channels":1,"encoding":"pcm_s16le","sha256":"…","audio":"…"}\n\n'
            'id: end\nevent: completed\ndata: {"id":"job_…","status":"completed"}\n\n'
        },
        "audio/pcm": {},
        "audio/wav": {},
    },
}
AUDIO_FILE = {
    "description": "The file",
    "content": {name: {} for name in ("audio/wav", "audio/pcm", "audio/flac", "audio/mpeg", "audio/ogg")},
}
