"""What an api process does by itself, beside its requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from api.errors import broker_cannot
from api.metrics import count_final_jobs
from api.service import Service
from api.webhooks import deliver_webhooks

_log = logging.getLogger(__name__)
COUNT_EVERY_S = 1.0
TIDY_EVERY_S = 10.0


def start_chores(service: Service) -> list[asyncio.Task[None]]:
    """They run until they are cancelled, whatever goes wrong in between."""
    chores = [(COUNT_EVERY_S, count_final_jobs), (TIDY_EVERY_S, forget_gone_files)]
    if service.webhooks.hosts:
        chores.append((service.settings.webhooks.look_every_s, deliver_webhooks))
    return [asyncio.create_task(_repeat(every_s, chore, service)) for every_s, chore in chores]


async def forget_gone_files(service: Service) -> None:
    await service.files.forget_gone(service.client())


async def _repeat(every_s: float, chore: Callable[[Service], Awaitable[None]], service: Service) -> None:
    while True:
        await asyncio.sleep(every_s)
        try:
            await chore(service)
        except Exception as error:
            _log.warning("%s: not this time", chore.__name__, exc_info=None if broker_cannot(error) else error)
