"""A job's sound as it is made: server-sent events, raw audio, WebSocket. Any number may listen, from any time on."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, WebSocket
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect

from api.auth import Owner
from api.encoding import FORMATS, encoded, media_type
from api.errors import ApiError, as_api_error, quoted, without_sound
from api.examples import CHUNK_EVENTS, errors
from api.following import final_state, pcm, steadily, with_pauses
from api.responses import (
    EVENT_STREAM,
    EVENT_STREAM_HEADERS,
    KEEP_ALIVE,
    Dropped,
    Stream,
    preferred,
    sse,
    while_connected,
)
from api.service import Service, Serving
from api.views import job_view
from broker_schemas.contract import BadField, Contract
from broker_schemas.job import Status
from producer.follow import Chunk, Expired
from producer.wav import SAMPLE_BYTES

END = "end"  # the last event's id: a client that comes back with it has all
SSE = "sse"
_MAX_INDEX = 10**9 - 1
_ACCEPTED = {
    EVENT_STREAM: SSE, "*/*": SSE, "text/*": SSE, "audio/pcm": "pcm", "audio/wav": "wav", "audio/x-wav": "wav",
    "audio/wave": "wav", "audio/flac": "flac", "audio/mpeg": "mp3", "audio/ogg": "opus", "audio/*": "wav",
}  # fmt: skip

router = APIRouter(tags=["sound"])


@router.get(
    "/v1/jobs/{job}/stream",
    summary="Listen to a job",
    response_class=Response,
    responses={200: CHUNK_EVENTS, **errors(400, 401, 404, 406, 409, 410, 503)},
)
async def stream(
    request: Request,
    service: Serving,
    owner: Owner,
    job: str,
    format: Annotated[str | None, Query(description="sse, pcm, wav, flac, mp3 or opus; else as Accept says")] = None,
    after: Annotated[int, Query(ge=-1, le=_MAX_INDEX, description="index of the last chunk that you have")] = -1,
    last_event_id: Annotated[str | None, Header(description="id of the last event that you have")] = None,
) -> Response:
    """Every chunk from the first one on, as it is made, whenever you join.

    **text/event-stream** (the default): `audio.chunk` events with base64 PCM (16-bit little-endian, interleaved), and
    one last event, `completed`, `failed` or `cancelled`, with the job. To go on after a broken connection send the
    last event's id as `Last-Event-ID`, as browsers do by themselves: nothing is lost or repeated.

    **audio/pcm, audio/wav, …** (`Accept` or `?format=`): the sound alone. If the job does not complete, the
    connection is cut, so that a part is not taken for the whole; one that has failed already answers 409.
    """
    state = await service.state(job, owner)
    contract = service.contract_of(state)
    kind = _kind(format, request.headers.get("accept"))
    if kind == SSE:
        if last_event_id == END:
            return Response(status_code=204)  # tells EventSource not to come back
        after = _index("Last-Event-ID", last_event_id) if last_event_id else after
        events = sound_events(service, job, contract, after_chunk=after)
        return Stream(events, service=service, job=job, kind=SSE, media_type=EVENT_STREAM, headers=EVENT_STREAM_HEADERS)
    if state.status in (Status.FAILED, Status.CANCELLED):
        raise without_sound(state)
    wanted = FORMATS[kind]
    sound = pcm(service, job, after_chunk=after)
    return Stream(
        encoded(sound, wanted, contract.sample_rate, contract.channels),
        service=service,
        job=job,
        kind=kind,
        media_type=media_type(wanted, contract.sample_rate, contract.channels),
        headers={"Cache-Control": "no-store"},
    )


@router.websocket("/v1/jobs/{job}/ws")
async def websocket(socket: WebSocket, service: Serving, job: str) -> None:
    """For each chunk a JSON message (type "audio.chunk", sha256, …) and then its PCM as a binary one.

    The last message has the type completed, failed or cancelled, and the job. `?after=` goes on after a chunk.
    """
    try:
        owner = service.keyring.owner(socket.headers.get("authorization"))
        state = await service.state(job, owner)
        contract = service.contract_of(state)
        after = _index("after", socket.query_params.get("after") or "-1")
    except Exception as error:
        await socket.send_denial_response(as_api_error(error).response())
        return
    await socket.accept()
    subscribers = service.metrics.subscribers.labels("ws")
    subscribers.inc()
    try:
        await while_connected(service, job, socket.receive, _send_all(service, socket, job, contract, after))
        await socket.close()
    except (Dropped, WebSocketDisconnect):
        pass
    except Exception as error:
        answer = as_api_error(error)
        await socket.send_json({"type": "error", **answer.body()})
        await socket.close(code=1012 if service.stopping.is_set() else 1011, reason=answer.code)
    finally:
        subscribers.dec()


async def _send_all(service: Service, socket: WebSocket, job: str, contract: Contract, after: int) -> None:
    sent = service.metrics.bytes_out.labels("ws")
    following = steadily(service, job, after_chunk=after)
    async with aclosing(following):
        async for item in following:
            if isinstance(item, Chunk):
                await socket.send_json({"type": "audio.chunk", **chunk_view(item, contract)})
                await socket.send_bytes(item.pcm)
                sent.inc(len(item.pcm))
    state = await final_state(service, job)
    view = job_view(state, contract)
    await socket.send_json({"type": state.status.value, "job": view})


async def sound_events(
    service: Service, job: str, contract: Contract, *, after_chunk: int
) -> AsyncGenerator[bytes, None]:
    """The event stream of a job's sound, to its end."""
    yield b"retry: 1000\n\n"
    sent = service.metrics.bytes_out.labels(SSE)
    items = with_pauses(steadily(service, job, after_chunk=after_chunk), service.settings.keep_alive_s, wanted=Chunk)
    try:
        async with aclosing(items):
            async for chunk in items:
                if chunk is None:
                    yield KEEP_ALIVE
                else:
                    yield _chunk_event(chunk, contract)
                    sent.inc(len(chunk.pcm))
        state = await final_state(service, job)
    except Expired as error:
        yield sse(as_api_error(error).body(), event="expired", id_=END)
        return
    yield sse(job_view(state, contract), event=state.status.value, id_=END)


def chunk_view(chunk: Chunk, contract: Contract) -> dict[str, Any]:
    """What is said of a chunk beside its sound. `samples` and `start_sample` per channel."""
    return {
        "index": chunk.index,
        "start_sample": chunk.start,
        "samples": len(chunk.pcm) // (SAMPLE_BYTES * contract.channels),
        "sample_rate": contract.sample_rate,
        "channels": contract.channels,
        "encoding": "pcm_s16le",
        "sha256": chunk.sha256,
    }


def _chunk_event(chunk: Chunk, contract: Contract) -> bytes:
    content = {**chunk_view(chunk, contract), "audio": base64.b64encode(chunk.pcm).decode()}
    return sse(content, event="audio.chunk", id_=chunk.index)


def _kind(format_: str | None, accept: str | None) -> str:
    if format_ is not None:
        if format_ != SSE and format_ not in FORMATS:
            raise BadField(
                "format", f"format {quoted(format_)} cannot be streamed: use one of {', '.join((SSE, *FORMATS))}."
            )
        return format_
    if (media := preferred(accept or "*/*", _ACCEPTED)) is not None:
        return _ACCEPTED[media]
    raise ApiError(
        406, f"{quoted(accept)} cannot be sent: accept {EVENT_STREAM}, audio/pcm or audio/wav, or use ?format=.",
        code="not_acceptable", param="Accept",
    )  # fmt: skip


def _index(field: str, text: str) -> int:
    """Index of the last chunk that the client has; -1 for none."""
    if not re.fullmatch(r"-1|[0-9]{1,9}", text):
        raise BadField(field, f"{field} {quoted(text)} is no chunk's index: send that of the last one that you have.")
    return int(text)
