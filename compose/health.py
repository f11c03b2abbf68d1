"""`songline health`: whether this host's role does its work; what the containers' health checks run."""

from __future__ import annotations

import argparse
from typing import Any

from broker_schemas import keys
from broker_schemas.heartbeat import Heartbeat, broker_ms, named_here, read_heartbeats
from compose.broker import LOCAL_REDIS, connect
from compose.trouble import FAILED, USAGE, Trouble

_BEATING = (*keys.ROLES, keys.ARCHIVE)


def health(args: argparse.Namespace) -> None:
    """Raises Trouble where the role is not well."""
    if args.role == "api":
        _api(args.port)
    elif args.role in _BEATING:
        _beats(args)
    else:
        raise Trouble(f"no role {args.role!r}: there are api, {', '.join(_BEATING)}", USAGE)


def _api(port: int) -> None:
    import httpx

    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/health", timeout=5)
    except httpx.HTTPError as error:
        raise Trouble(f"the api does not answer at port {port}: {error}", FAILED) from error
    if answer.status_code != 200:
        raise Trouble(f"the api answers {answer.status_code} at port {port}", FAILED)


def _beats(args: argparse.Namespace) -> None:
    client: Any = connect(args.broker or LOCAL_REDIS).client()
    beats = read_heartbeats(client.hgetall(keys.WORKERS))
    newest = max((beat for beat in beats if _own(beat, args)), key=lambda beat: beat.at, default=None)
    if newest is None:
        raise Trouble(f"no {args.role} of this host has said a word", FAILED)
    now_ms = broker_ms(client.time())
    if not newest.alive(now_ms):
        raise Trouble(f"{newest.worker} has been silent for {(now_ms - newest.at) / 1000:.0f} s", FAILED)
    if newest.stuck:
        raise Trouble(f"nothing that {newest.worker} holds goes on, for {newest.oldest_s:.0f} s: start it anew", FAILED)


def _own(beat: Heartbeat, args: argparse.Namespace) -> bool:
    return beat.worker == args.name if args.name else named_here(beat.worker, args.role)
