"""`songline archive`: keeps finished jobs in a folder or an object store, beside whatever serves."""

from __future__ import annotations

import argparse
from typing import Any

import redis

from broker_schemas.connection import Broker
from compose.broker import LOCAL_REDIS, connect
from compose.stopping import Stop
from compose.trouble import FAILED, UNREACHABLE, USAGE, Trouble
from producer.archive.archiver import Archiver
from producer.archive.settings import ArchiveSettings
from producer.archive.store import Store


def archive(args: argparse.Namespace) -> None:
    """Until it is stopped; with `--once` what is there now."""
    if not args.archive:
        raise Trouble("where to? Name a folder, or a store such as s3://bucket/prefix, with --archive", USAGE)
    stop = Stop()
    # Whoever started this process starts it anew, Docker too, which does nothing about one that is unhealthy.
    archiver = archiver_of(args, connect(args.broker or LOCAL_REDIS), name=args.name, on_stuck=stop.set)
    if args.once:
        _catch_up(archiver)
        return
    stop.listen()
    archiver.run(stop)
    if archiver.stuck:
        raise Trouble(f"{args.archive} answers none of its calls: look at the store, and start this again", FAILED)


def archiver_of(args: argparse.Namespace, broker: Broker, **options: Any) -> Archiver:
    """`options`: further ones of Archiver. Raises Trouble where the store cannot be used."""
    try:
        store = Store(args.archive)
    except ImportError as error:
        raise Trouble(
            f"--archive {args.archive}: {error}; for s3:// it is `pip install 'songline[s3]'`", USAGE
        ) from error
    except ValueError as error:
        raise Trouble(f"--archive {args.archive}: {error}", USAGE) from error
    try:
        store.check()
    except Exception as error:  # the libraries of stores raise what they like
        raise Trouble(f"--archive {args.archive} cannot be used: {type(error).__name__}: {error}", FAILED) from error
    return Archiver(broker.client(), store, ArchiveSettings(format=args.archive_format), **options)


def _catch_up(archiver: Archiver) -> None:
    try:
        tally, waiting = archiver.catch_up(), archiver.waiting()
    except redis.RedisError as error:
        raise Trouble(f"the broker is away: {error}", UNREACHABLE) from error
    print(f"{tally.written} archived, {tally.there} were there already")
    if waiting:
        print(f"{waiting} wait: another has them in hand, or they are put off")
    if tally.failed:
        raise Trouble(f"{tally.failed} could not be archived, and are tried again by whoever archives next", FAILED)
