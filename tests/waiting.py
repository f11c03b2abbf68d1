"""Waiting for what must come about, however slow the machine."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

from broker_schemas.job import JobState

PATIENCE_S = 240.0  # whatever has not come about by then never will

T = TypeVar("T")


async def until(condition: Callable[[], T | Awaitable[T]]) -> T:
    """The first true thing that the condition gives; raises TimeoutError."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = condition()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.01)


async def reach(producer, job: str, condition: Callable[[JobState], object]) -> JobState:
    """The job's first state seen that meets the condition; raises TimeoutError."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition(state := await producer.jobs.state(job)):
            await asyncio.sleep(0.005)
    return state
