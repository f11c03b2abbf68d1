"""The Redis server that a command was given."""

from __future__ import annotations

import redis

from broker_schemas.connection import RedisBroker
from compose.trouble import UNREACHABLE, USAGE, Trouble

LOCAL_REDIS = "redis://127.0.0.1:6379/0"


def connect(url: str) -> RedisBroker:
    """The Redis server at `url`, once it has answered. Raises Trouble."""
    try:
        broker = RedisBroker(url)
        broker.client().ping()
    except ValueError as error:
        raise Trouble(f"--broker {url} is no Redis URL: {error}", USAGE) from error
    except redis.RedisError as error:
        raise Trouble(
            f"no Redis answers at {url}: {error}\nStart one with `redis-server --appendonly yes --appendfsync always "
            "--maxmemory-policy noeviction`, or name another with --broker; `songline up` needs none",
            UNREACHABLE,
        ) from error
    return broker
