"""`songline health`: whether this host's role does its work; what the containers' health checks run."""

from __future__ import annotations

import argparse
import time

from broker_schemas import keys
from broker_schemas.codec import unpack
from compose.broker import LOCAL_REDIS, connect
from compose.names import worker_prefix
from compose.trouble import FAILED, USAGE, Trouble

_SILENT_MS = 10_000  # a worker silent for so long is not counted on


def health(args: argparse.Namespace) -> None:
    """Raises Trouble where the role is not well."""
    if args.role == "api":
        _api(args.port)
    elif args.role in keys.ROLES:
        _worker(args)
    else:
        raise Trouble(f"no role {args.role!r}: there are api, {' and '.join(keys.ROLES)}", USAGE)


def _api(port: int) -> None:
    import httpx

    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/health", timeout=5)
    except httpx.HTTPError as error:
        raise Trouble(f"the api does not answer at port {port}: {error}", FAILED) from error
    if answer.status_code != 200:
        raise Trouble(f"the api answers {answer.status_code} at port {port}", FAILED)


def _worker(args: argparse.Namespace) -> None:
    beats = connect(args.broker or LOCAL_REDIS).client().hgetall(keys.WORKERS)
    now_ms = time.time() * 1000
    own = {name.decode(): unpack(raw) for name, raw in beats.items() if _own(name.decode(), args)}
    if not own:
        raise Trouble(f"no {args.role} of this host has said a word", FAILED)
    name, newest = max(own.items(), key=lambda item: item[1]["at"])
    silent_ms = now_ms - newest["at"]
    if silent_ms > _SILENT_MS:
        raise Trouble(f"{name} has been silent for {silent_ms / 1000:.0f} s", FAILED)


def _own(name: str, args: argparse.Namespace) -> bool:
    return name == args.name if args.name else name.startswith(worker_prefix(args.role))
