"""The pipeline as its operator sees it: queues, and what each worker holds and does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter

from api import queue
from api.auth import Owner
from api.service import Serving
from broker_schemas import keys
from broker_schemas.heartbeat import Heartbeat, broker_ms, living

_TOLD = ("delivered", "failed", "given_up")
_KEPT = ("archived", "failed")

router = APIRouter()


@router.get("/v1/pipeline", tags=["operation"], summary="Look at queues and workers")
async def pipeline(service: Serving, owner: Owner) -> dict[str, Any]:
    """Jobs that wait for a talker and for the acoustic stage, and the workers and archivers that are alive.

    `oldest_s` is how long a worker has held the job that it took first; `done` counts what it did since its start:
    jobs, takeovers, cancelled, failed; a talker's draws and steps; an acoustic worker's windows, the calls that decoded
    them, samples, and windows that came later than their listener could play them (late); and of both, the time in
    steps or calls (busy_ms). An archiver's role is `archive`, and it has neither model nor profile; it counts jobs that
    it archived and that were there already (there), and attempts that failed. It is `stuck` where the store answers it
    no more.

    `webhooks`: jobs whose end is yet to be told (owed), those of them that were tried in vain (retrying); and of all
    times, ends that were told (delivered) or never could be (given_up), and attempts that failed.

    `archive`: final jobs that no archive has (waiting), and for how long the first of them has waited (oldest_s); and
    of all times, jobs that were archived, and attempts that failed.
    """
    client = service.client()
    now_ms, beats = await live_workers(client)
    models = sorted(service.contracts)
    waiting = await asyncio.gather(*(queue.depth(client, name) for name in models))
    ready = await asyncio.gather(*(client.xlen(keys.ready(name)) for name in models))
    return {
        "at": now_ms,
        "live_jobs": await client.zcard(keys.LIVE),
        "models": {
            name: {"queued": queued, "ready": sounding}
            for name, queued, sounding in zip(models, waiting, ready, strict=True)
        },
        "webhooks": await webhooks(client),
        "archive": await archive(client, now_ms),
        "workers": [_shown(beat, now_ms) for beat in beats],
    }


async def webhooks(client: Any) -> dict[str, int]:
    """What is owed to webhooks now, and what became of what was."""
    owed = await client.hlen(keys.WEBHOOKS_OWED)
    retrying = await client.hlen(keys.WEBHOOK_MESSAGES)
    return {"owed": owed, "retrying": retrying, **await _counts(client, keys.WEBHOOKS_DONE, _TOLD)}


async def archive(client: Any, now_ms: int) -> dict[str, float]:
    """What waits to be archived now, and what became of what did."""
    waiting = await client.zcard(keys.UNARCHIVED)
    first = await client.zrange(keys.UNARCHIVED_SINCE, 0, 0, withscores=True)
    oldest_ms = max(0, now_ms - int(first[0][1])) if first else 0
    return {"waiting": waiting, "oldest_s": oldest_ms / 1000, **await _counts(client, keys.ARCHIVED, _KEPT)}


async def _counts(client: Any, key: str, names: Sequence[str]) -> dict[str, int]:
    counted = await client.hmget(key, names)
    return {name: int(number or 0) for name, number in zip(names, counted, strict=True)}


async def live_workers(client: Any) -> tuple[int, list[Heartbeat]]:
    """The broker's time in ms, and the workers and archivers whose heartbeat is fresh, by model, role and name."""
    now_ms = broker_ms(await client.time())
    return now_ms, living(await client.hgetall(keys.WORKERS), now_ms)


def _shown(beat: Heartbeat, now_ms: int) -> dict[str, Any]:
    return {
        "worker": beat.worker,
        "role": beat.role,
        "model": beat.model,
        "profile": beat.profile,
        "state": beat.state,
        "slots": beat.slots,
        "held": beat.held,
        "oldest_s": round(beat.oldest_s, 3),
        "silent_s": max(0, now_ms - beat.at) / 1000,
        "done": beat.counts,
    }
