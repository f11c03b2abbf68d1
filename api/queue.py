"""Who waits for a talker, and in which place."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ResponseError

from broker_schemas import keys

_COUNTED = 10_000  # waiting jobs of one owner that are counted


async def depth(client: Any, model: str) -> int:
    """Jobs of the model that no talker has taken yet."""
    owners = await client.smembers(keys.owners(model))
    return sum([await _waiting(client, keys.requests(model, owner.decode())) for owner in owners])


async def position(client: Any, job: str, model: str, owner: str) -> int | None:
    """The job's place in the queue, 1 being the next; None once a talker has its pointer.

    Owners are served in turn, so each other owner counts with as many jobs as the job's own owner has up to it: the
    place is the worst case.
    """
    stream = keys.requests(model, owner)
    entry = await client.hget(keys.posted(stream), job)
    if entry is None:
        return None
    taken = await _newest_taken(client, stream)
    if _order(entry) <= _order(taken):
        return None
    own = len(await client.xrange(stream, f"({taken.decode()}", entry, count=_COUNTED))
    others = 0
    for other in await client.smembers(keys.owners(model)):
        if other.decode() != owner:
            others += min(own, await _waiting(client, keys.requests(model, other.decode()), at_most=own))
    return own + others


async def _waiting(client: Any, stream: str, at_most: int = _COUNTED) -> int:
    taken = await _newest_taken(client, stream)
    return len(await client.xrange(stream, f"({taken.decode()}", "+", count=at_most))


async def _newest_taken(client: Any, stream: str) -> bytes:
    """Id of the newest entry that the talkers have been given."""
    try:
        groups = await client.xinfo_groups(stream)
    except ResponseError:  # no such stream
        return b"0-0"
    for group in groups:
        if group["name"] == keys.group(keys.TALKER).encode():
            return group["last-delivered-id"]
    return b"0-0"


def _order(entry: bytes) -> tuple[int, int]:
    time, _, number = entry.partition(b"-")
    return int(time), int(number)
