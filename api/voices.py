"""Voices of one's own: upload a recording under a name, list, delete. `voice` in a request then names one."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
import unicodedata
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from api.auth import Owner
from api.errors import ApiError, quoted
from api.examples import errors, shown
from api.service import Serving
from api.settings import VoiceLimits
from broker_schemas import keys
from broker_schemas.contract import BadField
from broker_schemas.recordings import BadRecording, read_recording
from broker_schemas.voices import NO_VOICE, Voice, field

_NAME = re.compile(r"\w([\w .-]{0,62}[\w.-])?")
_MAX_TEXT = 4_000  # characters of a consent or a transcript
_FORM_BYTES = 64 << 10  # of a form, besides the recording
_DRAINED = 4  # times the limit: what is read of a form that is too large, as a client hears nothing while it sends
_FIELDS = ("name", "consent", "ref_text", "audio_sample")
_NO_RETRY = {"x-should-retry": "false"}

_VOICE = {
    "id": "anna", "object": "audio.voice", "kind": "uploaded", "name": "anna",
    "consent": "Anna N. agreed in writing on 2026-01-05.", "ref_text": "The river knows the way.",
    "bytes": 240_044, "seconds": 5.0, "sample_rate": 24_000, "sha256": "…", "created_at": 1767225600,
}  # fmt: skip
_BUILT_IN = {"id": "vivian", "object": "audio.voice", "kind": "built-in", "name": "vivian", "model": "qwen3_tts"}
_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["name", "consent", "audio_sample"],
                    "properties": {
                        "name": {"type": "string", "description": "1 to 64 letters, digits, spaces, dots, _ and -."},
                        "consent": {"type": "string", "description": "The speaker's consent; it is kept."},
                        "audio_sample": {
                            "type": "string",
                            "format": "binary",
                            "description": "WAV, FLAC, MP3 or OGG, 0.5 to 60 s, at most 10 MiB; 3 to 10 s do well.",
                        },
                        "ref_text": {"type": "string", "description": "What the recording says, for a closer clone."},
                    },
                }
            }
        },
    }
}

router = APIRouter(tags=["voices"])


@router.post(
    "/v1/audio/voices",
    summary="Upload a voice",
    status_code=201,
    openapi_extra=_FORM,
    responses={
        201: shown("Kept", _VOICE), 200: shown("The same voice was there already", _VOICE),
        409: {"description": "Another voice has the name, or there is no room"}, **errors(400, 401, 413, 503),
    },
)  # fmt: skip
async def upload(request: Request, service: Serving, owner: Owner) -> JSONResponse:
    """The recording is kept as it came. Names are yours alone, and found whatever their case."""
    limits = service.settings.voices
    sent = await _sent(request, limits)
    try:
        pcm, rate = await asyncio.to_thread(read_recording, sent.recording, limits.recording)
    except BadRecording as error:
        raise ApiError(400, str(error), code="invalid_recording", param="audio_sample") from None
    voice = Voice(
        owner=owner,
        name=sent.name,
        consent=sent.consent,
        ref_text=sent.ref_text,
        sha256=hashlib.sha256(sent.recording).hexdigest(),
        size=len(sent.recording),
        seconds=round(len(pcm) / rate, 3),
        sample_rate=rate,
        created_at=int(time.time() * 1000),
    )
    kept = await _keep(service.client(), voice, sent.recording, limits)
    return JSONResponse(_view(kept), 201 if kept is voice else 200)


@router.get(
    "/v1/audio/voices",
    summary="List the voices",
    responses={
        200: shown("The models' own, then yours", {"object": "list", "data": [_BUILT_IN, _VOICE]}),
        **errors(401, 503),
    },
)
async def page(service: Serving, owner: Owner) -> dict[str, Any]:
    """The models' own voices by their models, and those that you uploaded, which models that clone can take."""
    built_in = [
        {"id": voice, "object": "audio.voice", "kind": "built-in", "name": voice, "model": model}
        for model, contract in sorted(service.contracts.items())
        for voice in sorted(contract.voices)
    ]
    uploaded = await voices_of(service.client(), owner)
    return {"object": "list", "data": built_in + [_view(voice) for voice in uploaded]}


@router.delete(
    "/v1/audio/voices/{name}",
    summary="Delete a voice",
    responses={
        200: shown("Gone", {"id": "anna", "object": "audio.voice", "deleted": True}),
        404: {"description": "No such voice, or another owner's"}, **errors(401, 503),
    },
)  # fmt: skip
async def delete(service: Serving, owner: Owner, name: str) -> dict[str, Any]:
    """Its recording goes with it, unless another voice has the same one. Jobs that wait to use it will fail."""
    voice = await _drop(service.client(), owner, name)
    return {"id": voice.name, "object": "audio.voice", "deleted": True}


async def find_voice(client: Any, owner: str, name: str) -> Voice | None:
    """The voice that an owner's request names, if it is one of theirs."""
    raw = await client.hget(keys.VOICES, field(owner, name))
    return None if raw is None else Voice.unpacked(raw)


async def voices_of(client: Any, owner: str) -> list[Voice]:
    """An owner's voices, by name."""
    voices = _voices(await client.hgetall(keys.VOICES))
    return sorted((voice for voice in voices if voice.owner == owner), key=lambda voice: voice.field)


# --- what was sent --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sent:
    name: str
    consent: str
    ref_text: str
    recording: bytes


async def _sent(request: Request, limits: VoiceLimits) -> _Sent:
    """Read an upload; raises ApiError, BadField."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        message = f"Send the voice as multipart/form-data, with {', '.join(_FIELDS)}."
        raise ApiError(400, message, code="invalid_form")
    body = _bounded(request, limits.recording.max_bytes + _FORM_BYTES)
    try:
        form = await MultiPartParser(request.headers, body, max_files=1, max_fields=len(_FIELDS)).parse()
    except MultiPartException as error:
        raise ApiError(400, f"The form cannot be read: {error.message}", code="invalid_form") from None
    try:
        for name in form:
            if name not in _FIELDS:
                raise BadField(name, f"{quoted(name)} means nothing here: send {', '.join(_FIELDS)}.")
        recording = form.get("audio_sample")
        if not isinstance(recording, UploadFile):
            raise BadField("audio_sample", "audio_sample is missing: send the recording as a file.")
        return _Sent(
            name=_name(_text(form, "name")),
            consent=_text(form, "consent"),
            ref_text=_text(form, "ref_text", required=False),
            recording=await recording.read(),
        )
    finally:
        await form.close()


async def _bounded(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size <= limit:
            yield piece
        elif size > limit * _DRAINED:
            break
    if size > limit:
        message = f"The upload is over {limit} bytes: send a shorter recording, or an MP3."
        raise ApiError(413, message, code="body_too_large", param="audio_sample")


def _text(form: FormData, name: str, *, required: bool = True) -> str:
    text = form.get(name, "")
    if not isinstance(text, str):
        raise BadField(name, f"{name} must be text, not a file.")
    text = unicodedata.normalize("NFC", text.strip())
    if required and not text:
        raise BadField(name, f"{name} is missing.")
    if len(text) > _MAX_TEXT:
        raise BadField(name, f"{name} is {len(text)} characters long: at most {_MAX_TEXT} can be taken.")
    return text


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadField(
            "name", f"name {quoted(name)} cannot be taken: use 1 to 64 letters, digits, spaces, dots, _ and -."
        )
    if name.casefold() in NO_VOICE:
        raise BadField("name", f"name {quoted(name)} cannot be taken: it leaves the voice to the model. Take another.")
    return name


# --- what is kept ---------------------------------------------------------------------------------------------------


async def _keep(client: Any, voice: Voice, recording: bytes, limits: VoiceLimits) -> Voice:
    """Write record and recording together; the record that is there already, where it says the same."""

    async def write(pipe: Any) -> Voice:
        records = await pipe.hgetall(keys.VOICES)
        there = records.get(voice.field.encode())
        if there is not None:
            return _same(Voice.unpacked(there), voice)
        _check_room(_voices(records), voice, limits)
        pipe.multi()
        pipe.set(keys.recording(voice.sha256), recording)
        pipe.hset(keys.VOICES, voice.field, voice.packed())
        return voice

    return await client.transaction(write, keys.VOICES, value_from_callable=True)


def _same(there: Voice, voice: Voice) -> Voice:
    if (there.sha256, there.consent, there.ref_text) != (voice.sha256, voice.consent, voice.ref_text):
        message = f"You have another voice {quoted(there.name)}: take another name, or DELETE that one first."
        raise ApiError(409, message, code="voice_exists", param="name", headers=_NO_RETRY)
    return there


def _check_room(voices: list[Voice], voice: Voice, limits: VoiceLimits) -> None:
    yours = sum(one.owner == voice.owner for one in voices)
    held = {one.sha256: one.size for one in (*voices, voice)}
    if yours >= limits.of_owner:
        full = f"you have {yours} voices, as many as one may have"
    elif len(voices) >= limits.of_all:
        full = f"there are {len(voices)} voices here, as many as there may be"
    elif sum(held.values()) > limits.max_bytes:
        full = f"all recordings together would be over {limits.max_bytes} bytes"
    else:
        return
    raise ApiError(409, f"There is no room: {full}. DELETE one first.", code="voices_full", headers=_NO_RETRY)


async def _drop(client: Any, owner: str, name: str) -> Voice:
    """Delete the record, and the recording that nobody else has; raises ApiError 404."""

    async def write(pipe: Any) -> Voice:
        records = await pipe.hgetall(keys.VOICES)
        raw = records.pop(field(owner, name).encode(), None)
        if raw is None:
            message = f"You have no voice {quoted(name)}: GET /v1/audio/voices lists those you have."
            raise ApiError(404, message, code="voice_not_found", param="name")
        voice = Voice.unpacked(raw)
        pipe.multi()
        pipe.hdel(keys.VOICES, voice.field)
        if all(other.sha256 != voice.sha256 for other in _voices(records)):
            pipe.delete(keys.recording(voice.sha256))
        return voice

    return await client.transaction(write, keys.VOICES, value_from_callable=True)


def _voices(records: Mapping[bytes, bytes]) -> list[Voice]:
    return [Voice.unpacked(raw) for raw in records.values()]


def _view(voice: Voice) -> dict[str, Any]:
    return {
        "id": voice.name,
        "object": "audio.voice",
        "kind": "uploaded",
        "name": voice.name,
        "consent": voice.consent,
        "ref_text": voice.ref_text or None,
        "bytes": voice.size,
        "seconds": voice.seconds,
        "sample_rate": voice.sample_rate,
        "sha256": voice.sha256,
        "created_at": voice.created_at // 1000,
    }
