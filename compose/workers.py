"""The operator's commands: which workers and archivers there are, and to drain one before it is stopped."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from broker_schemas import keys
from broker_schemas.heartbeat import Heartbeat, broker_ms, living
from compose.broker import LOCAL_REDIS, connect
from compose.trouble import FAILED, Trouble


def workers(args: argparse.Namespace) -> None:
    """List the workers and archivers that are alive."""
    client = connect(args.broker or LOCAL_REDIS).client()
    alive = alive_workers(client)
    if alive:
        _show(alive)
    if not any(beat.role in keys.ROLES for beat in alive):
        raise Trouble("no worker is alive: start `songline talker` and `songline acoustic`", FAILED)


def _show(alive: Sequence[Heartbeat]) -> None:
    width = max(len(beat.worker) for beat in alive)
    print(f"{'worker':<{width}}  {'role':<8}  {'model':<16}  profile   held  {'state':<8}  done")
    for beat in alive:
        done = " ".join(f"{what} {number}" for what, number in beat.counts.items() if number)
        print(
            f"{beat.worker:<{width}}  {beat.role:<8}  {beat.model:<16}  {beat.profile[:8]:<8}  "
            f"{f'{beat.held}/{beat.slots}':>4}  {beat.state:<8}  {done}"
        )


def drain(args: argparse.Namespace) -> None:
    """Have a worker take no more jobs; it finishes those that it has."""
    client = connect(args.broker or LOCAL_REDIS).client()
    beat = _named(client, args.worker)
    client.sadd(keys.DRAINING, args.worker)
    print(f"{args.worker} takes no more jobs; it holds {beat.held}. Stop it when `songline workers` says drained")


def undrain(args: argparse.Namespace) -> None:
    """Have a drained worker take jobs again."""
    client = connect(args.broker or LOCAL_REDIS).client()
    _named(client, args.worker)
    client.srem(keys.DRAINING, args.worker)
    print(f"{args.worker} takes jobs again")


def alive_workers(client: Any) -> list[Heartbeat]:
    """Whose heartbeat is fresh, archivers among them, by model, role and name."""
    return living(client.hgetall(keys.WORKERS), broker_ms(client.time()))


def _named(client: Any, worker: str) -> Heartbeat:
    alive = {beat.worker: beat for beat in alive_workers(client)}
    if worker in alive and alive[worker].role == keys.ARCHIVE:
        raise Trouble(f"{worker} is an archiver: stop it, and it finishes what it has in hand", FAILED)
    if worker not in alive:
        known = ", ".join(name for name, beat in alive.items() if beat.role != keys.ARCHIVE) or "none"
        raise Trouble(f"no worker {worker!r} is alive; there are: {known}", FAILED)
    return alive[worker]
