"""The client that waits, as a test with an event loop uses it: the same names as the other client's, all awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from producer import Chunk, Job, Songline

_END = object()


class Threaded:
    """Runs every method of a Songline or a Job in a thread, and wraps the jobs that come of it."""

    def __init__(self, own: Songline | Job) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._own, name)
        if not callable(attribute):
            return attribute

        async def call(*args: Any, **options: Any) -> Any:
            return _wrapped(await asyncio.to_thread(attribute, *args, **options))

        return call

    async def chunks(self, **options: Any) -> AsyncIterator[Chunk]:
        chunks = self._own.chunks(**options)
        while (chunk := await asyncio.to_thread(next, chunks, _END)) is not _END:
            yield chunk

    __aiter__ = chunks


def _wrapped(value: Any) -> Any:
    if isinstance(value, list):
        return [_wrapped(item) for item in value]
    return Threaded(value) if isinstance(value, Job) else value
