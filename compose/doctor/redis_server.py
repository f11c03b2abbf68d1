"""The Redis server: whether it answers, keeps what it is told, and which workers it knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import redis

from broker_schemas import keys
from broker_schemas.heartbeat import Heartbeat
from compose.broker import LOCAL_REDIS, connect, without_password
from compose.doctor.finding import Finding, note, ok, wrong
from compose.trouble import Trouble
from compose.workers import alive_workers

_LEAST = (7, 0)
_DIGITS = 12  # shown of a profile


def broker(url: str | None) -> Iterator[Finding]:
    """`url`: the one that was named; without one, whether there is one where it would be looked for."""
    try:
        client: Any = connect(url or LOCAL_REDIS).client()
    except Trouble as trouble:
        said, _, advice = str(trouble).partition("\n")
        yield wrong("redis", said, advice) if url else note("redis", said, advice)
        return
    yield version(without_password(url or LOCAL_REDIS), client.info("server")["redis_version"])
    try:
        yield from durability(client.config_get("append*") | client.config_get("maxmemory*"))
    except redis.ResponseError as error:
        advice = "have its operator tell you of appendonly, appendfsync and maxmemory-policy"
        yield note("redis", f"its settings cannot be read: {error}", advice)
    alive = alive_workers(client)
    yield from workers(alive)
    yield from archive([beat for beat in alive if beat.role == keys.ARCHIVE], client)


def version(where: str, found: str) -> Finding:
    said = f"{found} at {where}"
    numbers = tuple(int(part) for part in found.split(".")[:2])
    return ok("redis", said) if numbers >= _LEAST else wrong("redis", said, "upgrade to Redis 7 or later")


def durability(settings: Mapping[str, str]) -> Iterator[Finding]:
    """By what `CONFIG GET` answers."""
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy == "noeviction":
        yield ok("redis", "maxmemory-policy noeviction")
    else:
        advice = "jobs' logs would be dropped to make room: CONFIG SET maxmemory-policy noeviction"
        yield wrong("redis", f"maxmemory-policy {policy}", advice)
    if settings.get("appendonly") != "yes":
        advice = "jobs are gone when Redis stops: start it with --appendonly yes --appendfsync always"
        yield wrong("redis", "appendonly no", advice)
    elif settings.get("appendfsync") == "always":
        yield ok("redis", "appendfsync always")
    else:
        advice = "a power cut may take the last second of writes: CONFIG SET appendfsync always keeps all"
        yield note("redis", f"appendfsync {settings.get('appendfsync')}", advice)


def workers(alive: Sequence[Heartbeat]) -> Iterator[Finding]:
    """Who serves what. `alive`: whose heartbeat is fresh."""
    models = sorted({beat.model for beat in alive if beat.role in keys.ROLES})
    if not models:
        yield note("workers", "none is alive", "start them: songline talker, songline acoustic")
    for model in models:
        for role in keys.ROLES:
            yield _of_role(model, role, [beat for beat in alive if (beat.model, beat.role) == (model, role)])


def archive(archivers: Sequence[Heartbeat], client: Any) -> Iterator[Finding]:
    """Who archives, and what waits; nothing where nobody ever did."""
    counted, waiting = client.hgetall(keys.ARCHIVED), f"{client.zcard(keys.UNARCHIVED)} jobs wait to be archived"
    if not archivers and not counted:
        return
    for beat in archivers:
        if beat.stuck:
            advice = "look at the store, and start it anew"
            yield wrong("archive", f"{beat.worker}: its store answers none of its calls", advice)
    if archivers:
        yield ok("archive", f"{len(archivers)} alive, {waiting}")
    else:
        advice = "start it before their keys go: songline archive --archive URL"
        yield note("archive", f"none is alive, {waiting}", advice)


def _of_role(model: str, role: str, beats: Sequence[Heartbeat]) -> Finding:
    if not beats:
        return wrong("workers", f"{model}: no {role}", f"its jobs wait: start one with songline {role}")
    profiles = Counter(beat.profile for beat in beats)
    shown = ", ".join(f"{count} of profile {profile[:_DIGITS]}" for profile, count in sorted(profiles.items()))
    said = f"{model}: {len(beats)} {role}, {shown}"
    if len(profiles) == 1:
        return ok("workers", said)
    return note("workers", said, "a job is taken over only within its profile: keep two of each, or make them alike")
