"""OpenAI's speech route: one request, the sound as its answer. Behind it is a job like any other."""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from api.auth import Owner
from api.encoding import FORMATS, Format, encoded, media_type
from api.errors import as_api_error, broker_cannot, ended_without_sound
from api.examples import AUDIO_FILE, SPEECH_BODY, errors
from api.following import final_state, pcm, until_final, with_pauses
from api.responses import EVENT_STREAM, EVENT_STREAM_HEADERS, KEEP_ALIVE, Dropped, Stream, sse, while_connected
from api.service import Service, Serving
from api.submission import Ask, submit
from broker_schemas.job import Status
from producer.follow import Unknown

_log = logging.getLogger(__name__)
_DEFAULT_FORMAT = "mp3"  # OpenAI's

router = APIRouter(tags=["speech"])


@router.post(
    "/v1/audio/speech",
    summary="Speak or sing (OpenAI-compatible)",
    response_class=Response,
    openapi_extra=SPEECH_BODY,
    responses={200: AUDIO_FILE, **errors(400, 401, 404, 409, 413, 422, 429, 503)},
)
async def speech(
    request: Request,
    service: Serving,
    owner: Owner,
    idempotency_key: Annotated[str | None, Header(description="The same key again returns the same job.")] = None,
) -> Response:
    """The whole file once it is done; or, with `stream_format`, as it is made.

    Closing the connection cancels the job, unless an Idempotency-Key says that the client means to come back for it.
    `Songline-Job` and `Songline-Seed` name the job and its seed.
    """
    ask, submitted = await submit(service, request, owner, route="speech")
    job, requested = submitted.id, submitted.state.requested
    headers = {"Songline-Job": job, "Songline-Seed": str(requested.seed)}
    if requested.traceparent:
        headers["traceparent"] = requested.traceparent
    format_ = FORMATS[ask.response_format or _DEFAULT_FORMAT]
    on_drop = _keep if idempotency_key else _cancel(service, job)
    if ask.streamed:
        return _streamed(service, job, ask, format_, headers, on_drop)
    try:
        state = await while_connected(service, job, request.receive, until_final(service, job))
    except Dropped:
        await on_drop()
        return Response(status_code=499)  # to nobody
    if state.status is not Status.COMPLETED:
        raise ended_without_sound(state)
    file = await service.files.open(await service.producer(), job, format_, ask.contract)
    headers["Content-Length"] = str(file.size)
    headers["Content-Disposition"] = f'attachment; filename="{job}.{format_.suffix}"'
    return Stream(
        file.read(0, file.size), service=service, job=job, kind="speech", media_type=file.media_type, headers=headers
    )


def _streamed(
    service: Service,
    job: str,
    ask: Ask,
    format_: Format,
    headers: dict[str, str],
    on_drop: Callable[[], Awaitable[None]],
) -> Stream:
    contract = ask.contract
    sound = encoded(pcm(service, job), format_, contract.sample_rate, contract.channels)
    kind = media_type(format_, contract.sample_rate, contract.channels)
    if ask.streamed == "sse":
        sound, kind, headers = _openai_events(service, job, sound), EVENT_STREAM, headers | EVENT_STREAM_HEADERS
    return Stream(sound, service=service, job=job, kind="speech", media_type=kind, headers=headers, on_drop=on_drop)


async def _openai_events(service: Service, job: str, file: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """speech.audio.delta for each piece of the file, then speech.audio.done; `error` where the job does not end well.

    The prompt's tokens are the model's own affair: `usage` counts the frames alone.
    """
    sent = service.metrics.bytes_out.labels("speech")
    items = with_pauses(file, service.settings.keep_alive_s, wanted=bytes)
    yield KEEP_ALIVE  # the headers go out now
    try:
        async with aclosing(items):
            async for piece in items:
                if piece is None:
                    yield KEEP_ALIVE
                else:
                    yield sse({"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()})
                    sent.inc(len(piece))
        frames = (await final_state(service, job)).frames
    except Exception as error:
        yield sse({"type": "error", **as_api_error(error).body()})
        return
    usage = {"input_tokens": 0, "output_tokens": frames, "total_tokens": frames}
    yield sse({"type": "speech.audio.done", "usage": usage})


def _cancel(service: Service, job: str) -> Callable[[], Awaitable[None]]:
    async def cancel() -> None:
        try:
            await (await service.producer()).cancel(job, by_whom="client disconnected")
        except Unknown:
            pass
        except Exception as error:
            if not broker_cannot(error):
                raise
            _log.warning("job %s goes on to its deadline, as its client's leaving could not be written: %s", job, error)

    return cancel


async def _keep() -> None:
    """Leave the job to the client's next attempt."""
