"""Responses whose body is made while it is sent."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.ending import end
from api.errors import Stopping, as_api_error
from api.service import Service

_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)
EVENT_STREAM = "text/event-stream"
EVENT_STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
KEEP_ALIVE = b": still here\n\n"
_QUALITY = re.compile(r"q=([01](?:\.\d{0,3})?)")


class Dropped(Exception):
    """The client has closed its connection."""


def sse(content: dict[str, Any], *, event: str | None = None, id_: str | int | None = None) -> bytes:
    """One server-sent event."""
    lines = [f"id: {id_}"] if id_ is not None else []
    if event is not None:
        lines.append(f"event: {event}")
    lines.append(f"data: {json.dumps(content, separators=(',', ':'))}")
    return ("\n".join(lines) + "\n\n").encode()


async def until_dropped(receive: Receive) -> None:
    """Wait for the client to close its connection. The request's body must have been read."""
    while (await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
        pass


async def while_connected(service: Service, job: str, receive: Receive, work: Awaitable[_Result]) -> _Result:
    """The result of `work`, which is given up when nobody waits for it any more.

    Raises:
        Dropped: the client closed the connection.
        Stopping: this process is shutting down.
    """
    working = asyncio.ensure_future(work)
    dropped = asyncio.ensure_future(until_dropped(receive))
    stopping = asyncio.ensure_future(service.stopping.wait())
    waits = (working, dropped, stopping)
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        # Where a process that shuts down closes the connection itself, that is no client's wish.
        raise Stopping(job) if service.stopping.is_set() else Dropped
    finally:
        await end(*waits)


def preferred(accept: str | None, offered: Collection[str]) -> str | None:
    """The media type that an Accept header likes best of those on offer; None where it takes none of them."""
    liked = []
    for part in (accept or "").split(","):
        kind, *parameters = (text.strip().lower() for text in part.split(";"))
        quality = next((match[1] for text in parameters if (match := _QUALITY.fullmatch(text))), "1")
        if kind in offered and float(quality) > 0:
            liked.append((float(quality), kind))
    return max(liked, key=lambda item: item[0], default=(0.0, None))[1]


class Stream(Response):
    """A response whose body is sent as it is made; a slow client slows only itself.

    What `body` raises before its first piece becomes the answer. What it raises later cuts the connection, so that no
    client takes a part for the whole.
    """

    def __init__(
        self,
        body: AsyncGenerator[bytes, None],
        *,
        service: Service,
        job: str,
        kind: str,
        media_type: str,
        status: int = 200,
        headers: dict[str, str] | None = None,
        on_drop: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.status_code = status
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)
        self._body = body
        self._service = service
        self._job = job
        self._kind = kind
        self._on_drop = on_drop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._started = False
        subscribers = self._service.metrics.subscribers.labels(self._kind)
        subscribers.inc()
        try:
            await while_connected(self._service, self._job, receive, self._send(scope, send))
        except Dropped:
            if self._on_drop is not None:
                await self._on_drop()
        except Exception as error:
            answer = as_api_error(error)
            if not self._started:
                await answer.response()(scope, receive, send)
            else:
                _log.warning("job %s: a stream was cut: %s", self._job, answer)
        finally:
            subscribers.dec()
            await self._body.aclose()

    async def _send(self, scope: Scope, send: Send) -> None:
        if scope["method"] == "HEAD":
            await self._start(send)
        else:
            async for piece in self._body:
                if not self._started:
                    await self._start(send)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                if self.media_type != EVENT_STREAM:
                    self._service.metrics.bytes_out.labels(self._kind).inc(len(piece))
            if not self._started:
                await self._start(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send) -> None:
        self._started = True
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
