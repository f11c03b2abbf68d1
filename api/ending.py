"""Ending tasks for certain."""

from __future__ import annotations

import asyncio
from typing import Any

_AGAIN_S = 0.1


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until all are done: redis-py loses a cancellation that comes while it connects."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)
