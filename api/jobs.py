"""Jobs: submit, poll, list, read the log, fetch the file, cancel, purge."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from api import queue, ranges
from api.auth import Owner
from api.encoding import FORMATS
from api.errors import Stopping, expired_job, quoted, without_sound
from api.examples import AUDIO_FILE, JOB, JOB_BODY, errors, shown
from api.following import steadily, with_pauses
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
from api.submission import submit
from api.views import event_view, job_view, unreadable_view
from broker_schemas import keys
from broker_schemas.codec import DecodeError
from broker_schemas.connection import BLOCK_MS
from broker_schemas.contract import BadField
from broker_schemas.events import Event
from broker_schemas.job import BrokenLog, JobState, Status
from producer.follow import Unknown

_SCANNED = 1000  # jobs that one page looks through at most, where a filter drops many
_READ_AT_ONCE = 50

router = APIRouter(tags=["jobs"])


@router.post(
    "/v1/jobs",
    summary="Submit a job",
    status_code=202,
    openapi_extra=JOB_BODY,
    responses={
        202: shown("Accepted: its log is written", JOB), 200: shown("The Idempotency-Key's job, as it is", JOB),
        **errors(400, 401, 404, 413, 422, 429, 503),
    },
)  # fmt: skip
async def create(
    request: Request,
    service: Serving,
    owner: Owner,
    idempotency_key: Annotated[str | None, Header(description="The same key again returns the same job.")] = None,
    traceparent: Annotated[str | None, Header(description="W3C trace context; travels with the job.")] = None,
) -> JSONResponse:
    """Takes OpenAI's speech request and the model's own fields; answers at once with where to follow the job."""
    _, submitted = await submit(service, request, owner, route="jobs")
    headers = {"Location": f"/v1/jobs/{submitted.id}"}
    if submitted.state.requested.traceparent:
        headers["traceparent"] = submitted.state.requested.traceparent
    return JSONResponse(await _shown(service, submitted.state), 202 if submitted.created else 200, headers)


@router.get(
    "/v1/jobs",
    summary="List your jobs",
    responses={200: shown("Newest first", {"object": "list", "data": [JOB]}), **errors(400, 401, 503)},
)
async def page(
    service: Serving,
    owner: Owner,
    status: Annotated[Status | None, Query()] = None,
    model: Annotated[str | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before")] = None,
) -> dict[str, Any]:
    """Jobs that have not expired, newest first. A page may be short, or empty, and yet have a `next_cursor`."""
    found: list[dict[str, Any]] = []
    place, scanned = _read_cursor(cursor), 0
    shown_last = place
    while True:
        jobs = await _jobs_before(service, owner, place)
        for view, place in zip(await _views(service, jobs), jobs, strict=True):
            if view and status in (None, view["status"]) and model in (None, view["model"]):
                if len(found) == limit:
                    return _page(found, shown_last)
                found.append(view)
                shown_last = place
            scanned += 1
            if scanned == _SCANNED:
                return _page(found, place)
        if len(jobs) < _READ_AT_ONCE:
            return _page(found, None)


@router.get(
    "/v1/jobs/{job}", summary="Look at a job", responses={200: shown("The job", JOB), **errors(400, 401, 404, 410, 503)}
)
async def show(
    request: Request,
    service: Serving,
    owner: Owner,
    job: str,
    wait: Annotated[float, Query(ge=0, description="Hold until the job changes, or for so many seconds")] = 0,
) -> Response:
    """The fold of the job's log. A final job is answered at once, whatever `wait` says."""
    state = await service.state(job, owner)
    if wait and not state.status.final:
        changed = _changed(service, state, min(wait, service.settings.max_wait_s))
        try:
            state = await while_connected(service, job, request.receive, changed)
        except Stopping:
            pass
        except Dropped:
            return Response(status_code=499)  # to nobody
    return JSONResponse(await _shown(service, state))


@router.get(
    "/v1/jobs/{job}/events",
    summary="Read a job's log",
    response_class=JSONResponse,
    responses={**errors(400, 401, 404, 410, 503)},
)
async def events(
    request: Request,
    service: Serving,
    owner: Owner,
    job: str,
    after: Annotated[int, Query(ge=0, description="sequence number of the last event that you have")] = 0,
    last_event_id: Annotated[int | None, Header(ge=0)] = None,
) -> Response:
    """Every event so far as JSON; with `Accept: text/event-stream`, also those to come, until the job is final."""
    state = await service.state(job, owner)
    if preferred(request.headers.get("accept"), ("application/json", EVENT_STREAM)) == EVENT_STREAM:
        if last_event_id is not None and state.status.final and last_event_id >= state.seq:
            return Response(status_code=204)  # tells EventSource not to come back
        return Stream(
            _event_stream(service, job, after if last_event_id is None else last_event_id),
            service=service, job=job, kind="events", media_type=EVENT_STREAM, headers=EVENT_STREAM_HEADERS,
        )  # fmt: skip
    try:
        logged = await (await service.producer()).jobs.events(state.id)
    except Unknown:
        raise expired_job(job) from None
    return JSONResponse({"object": "list", "data": [event_view(event) for event in logged if event.seq > after]})


@router.head("/v1/jobs/{job}/audio", include_in_schema=False)
@router.get(
    "/v1/jobs/{job}/audio",
    summary="Fetch a completed job's file",
    response_class=Response,
    responses={200: AUDIO_FILE, 206: AUDIO_FILE, **errors(400, 401, 404, 409, 410, 416, 503)},
)
async def audio(
    request: Request,
    service: Serving,
    owner: Owner,
    job: str,
    format: Annotated[str | None, Query(description="wav, pcm, flac, mp3, opus; else as the job asked, or wav")] = None,
) -> Response:
    """The whole sound. One byte range at a time may be asked for; ETag, If-Range and If-None-Match are honoured."""
    state = await service.state(job, owner)
    contract = service.contract_of(state)
    name = format or state.requested.extra.get("response_format") or "wav"
    if name not in FORMATS:
        raise BadField("format", f"format {quoted(name)} cannot be made: use one of {', '.join(FORMATS)}.")
    if state.status is not Status.COMPLETED:
        raise without_sound(state)
    try:
        file = await service.files.open(await service.producer(), job, FORMATS[name], contract)
    except Unknown:
        raise expired_job(job) from None
    part = ranges.requested(request, file, f"{job}.{FORMATS[name].suffix}")
    if isinstance(part, Response):
        return part
    return Stream(
        file.read(part.start, part.stop),
        service=service, job=job, kind="file", media_type=file.media_type, status=part.status, headers=part.headers,
    )  # fmt: skip


@router.delete(
    "/v1/jobs/{job}",
    summary="Cancel a job",
    responses={200: shown("The job; a final one stays as it was", JOB), **errors(400, 401, 404, 410, 503)},
)
async def cancel(
    service: Serving,
    owner: Owner,
    job: str,
    purge: Annotated[
        bool, Query(description="Also forget it: everything of it is deleted now, but for an archive")
    ] = False,
) -> dict[str, Any]:
    """Ends the job wherever it is. Doing so twice is harmless."""
    producer = await service.owned(job, owner)
    if purge:
        await producer.purge(job, owner, by_whom="client")
        service.files.forget(job)
        return {"id": job, "object": "job.deleted", "deleted": True}
    try:
        state = await producer.cancel(job, by_whom="client")
    except Unknown:
        raise expired_job(job) from None
    return await _shown(service, state)


# --- what a job looks like ------------------------------------------------------------------------------------------


def _view(service: Service, state: JobState) -> dict[str, Any]:
    return job_view(state, service.contracts.get(state.requested.model))


async def _shown(service: Service, state: JobState) -> dict[str, Any]:
    view = _view(service, state)
    request = state.requested
    queued = state.status is Status.QUEUED
    view["queue_position"] = (
        await queue.position(service.client(), state.id, request.model, request.owner) if queued else None
    )
    return view


async def _changed(service: Service, state: JobState, seconds: float) -> JobState:
    """The state once it looks different, or after `seconds`."""
    producer = await service.producer()
    before = _view(service, state)
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        block = max(1, min(BLOCK_MS, int(left * 1000)))
        if await service.client().xread({keys.log(state.id): f"{state.seq}-0"}, count=1, block=block):
            try:
                state = await producer.jobs.state(state.id)
            except Unknown:
                raise expired_job(state.id) from None
            if _view(service, state) != before:
                break
    return state


async def _event_stream(service: Service, job: str, after: int) -> AsyncGenerator[bytes, None]:
    yield b"retry: 1000\n\n"
    items = with_pauses(
        steadily(service, job, after_seq=after, sound=False), service.settings.keep_alive_s, wanted=Event
    )
    async with aclosing(items):
        async for event in items:
            yield KEEP_ALIVE if event is None else sse(event_view(event), event=event.type, id_=event.seq)


# --- pages ----------------------------------------------------------------------------------------------------------


async def _jobs_before(service: Service, owner: str, place: tuple[int, str] | None) -> list[tuple[int, str]]:
    """Up to _READ_AT_ONCE of the owner's jobs as (time, id), newest first, from after a place in that order."""
    top, skipped = ("+inf", 0) if place is None else (place[0], 0)
    while True:
        entries = await service.client().zrevrangebyscore(
            keys.jobs(owner), top, "-inf", start=skipped, num=_READ_AT_ONCE, withscores=True
        )
        places = [(int(score), job.decode()) for job, score in entries]
        older = [found for found in places if place is None or found < place]
        if len(entries) < _READ_AT_ONCE or len(older) == _READ_AT_ONCE:
            return older
        # Jobs of the cursor's own millisecond that an earlier page had: read on behind them.
        skipped += len(places) - len(older)


async def _views(service: Service, places: list[tuple[int, str]]) -> list[dict[str, Any] | None]:
    """What the list shows of each job; None where it has expired."""
    reader = (await service.producer()).jobs

    async def view(requested_at: int, job: str) -> dict[str, Any] | None:
        try:
            return _view(service, await reader.state(job))
        except Unknown:
            return None
        except (BrokenLog, DecodeError) as error:
            return unreadable_view(job, requested_at, str(error))

    return await asyncio.gather(*(view(*place) for place in places))


def _page(found: list[dict[str, Any]], after: tuple[int, str] | None) -> dict[str, Any]:
    cursor = None if after is None else base64.urlsafe_b64encode(f"{after[0]} {after[1]}".encode()).decode()
    return {"object": "list", "data": found, "has_more": cursor is not None, "next_cursor": cursor}


def _read_cursor(cursor: str | None) -> tuple[int, str] | None:
    if cursor is None:
        return None
    try:
        at, job = base64.urlsafe_b64decode(cursor).decode().split(" ")
        return int(at), job
    except (binascii.Error, ValueError):
        raise BadField("cursor", "cursor is none of ours: send the next_cursor of the page before.") from None
