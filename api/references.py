"""Whose voice a request asks for, where the model clones: an uploaded one, or that of a recording that it brings.

Either becomes the recording's sha256, so that the same recording is the same request, however it came.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from api.errors import ApiError, quoted
from api.service import Service
from api.voices import find_voice, voices_of
from broker_schemas import log
from broker_schemas.contract import BadField, Order
from broker_schemas.recordings import BadRecording, RecordingLimits, read_recording
from broker_schemas.voices import NO_VOICE

_OUTLIVES_S = 60  # what a job brought stays a little longer than the job may live
_LISTED = 20  # voices that an error names
_WEB = re.compile(r"https?://", re.IGNORECASE)
_DATA = re.compile(r"data:[^,]*", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Reference:
    """The recording of the voice to clone.

    voice: the uploaded voice's name, "" for a recording that a request brings. ref_text: what it says, where its voice
    knows. content: None where an uploaded voice has it.
    """

    sha256: str
    voice: str = ""
    ref_text: str = ""
    content: bytes | None = None

    def stated(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The request as the contract is to see it."""
        if self.content is not None:
            return {**given, "ref_audio": self.sha256}
        return {**given, "ref_text": given.get("ref_text") or self.ref_text}

    def named(self, order: Order) -> Order:
        """The order with the recording's name in place of the voice's."""
        return replace(order, params=order.params | {"voice": "", "ref_audio": self.sha256})


async def find_reference(service: Service, owner: str, given: Mapping[str, Any]) -> Reference | None:
    """The reference that a cloning model's request names or brings; None where the contract is to say what is amiss.

    Raises:
        BadField, ApiError: there is no such voice, or the recording cannot be had or used.
    """
    sent, voice = given.get("ref_audio"), given.get("voice")
    if sent is not None:
        return await _brought(service, sent) if isinstance(sent, str) and sent else None
    if not isinstance(voice, str) or voice.strip().casefold() in NO_VOICE:
        return None
    found = await find_voice(service.client(), owner, voice.strip())
    if found is None:
        raise BadField("voice", f"You have no voice {quoted(voice)}: {await _those_there_are(service, owner)}")
    return Reference(found.sha256, found.name, found.ref_text)


async def keep_reference(service: Service, reference: Reference, deadline_s: float) -> None:
    """Have what a request brought lie where the job's workers find it. Raises ApiError 429 where there is no room."""
    if reference.content is None:
        return
    ttl_ms = int((deadline_s + _OUTLIVES_S) * 1000)
    max_bytes = service.settings.voices.sent_bytes
    call = log.keep_sent_recording(reference.sha256, reference.content, ttl_ms=ttl_ms, max_bytes=max_bytes)
    kept, room_in_ms = await service.run(call)
    if kept:
        return
    if room_in_ms < 0:
        message = f"The recording has over {max_bytes} bytes, more than all that requests bring may have: send less."
        raise ApiError(400, message, code="invalid_recording", param="ref_audio")
    seconds = max(1, min(3600, -(-room_in_ms // 1000)))
    raise ApiError(
        429, f"There is no room for more recordings: try again in {seconds} s, or upload the voice and name it.",
        code="recordings_full", param="ref_audio", headers={"Retry-After": str(seconds)},
    )  # fmt: skip


async def _those_there_are(service: Service, owner: str) -> str:
    names = [voice.name for voice in await voices_of(service.client(), owner)]
    if not names:
        return "you have none yet. POST /v1/audio/voices uploads one; or send ref_audio."
    more = f", and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"use one of {', '.join(names[:_LISTED])}{more}; or send ref_audio."


async def _brought(service: Service, sent: str) -> Reference:
    limits = service.settings.voices.recording
    if _WEB.match(sent):
        content = await service.reference_hosts.fetch(sent.strip())
        return await asyncio.to_thread(_checked, content, limits)
    return await asyncio.to_thread(lambda: _checked(_decoded(sent), limits))


def _decoded(sent: str) -> bytes:
    """The bytes of base64 or of a data: URI."""
    if head := _DATA.match(sent):
        if not head[0].lower().endswith(";base64") or sent[head.end() : head.end() + 1] != ",":
            raise BadField("ref_audio", "ref_audio's data: URI must be in base64: data:audio/wav;base64,…")
        sent = sent[head.end() + 1 :]
    elif _SCHEME.match(sent):
        raise BadField("ref_audio", "ref_audio must be a recording in base64, a data: URI, or an https URL.")
    try:
        return base64.b64decode(_SPACE.sub("", sent), validate=True)
    except (binascii.Error, ValueError):
        raise BadField("ref_audio", "ref_audio is not base64: encode the whole file, with its padding.") from None


def _checked(content: bytes, limits: RecordingLimits) -> Reference:
    try:
        read_recording(content, limits)
    except BadRecording as error:
        raise ApiError(400, str(error), code="invalid_recording", param="ref_audio") from None
    return Reference(hashlib.sha256(content).hexdigest(), content=content)
