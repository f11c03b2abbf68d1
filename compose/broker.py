"""Where a command's broker comes from: a Redis server by URL, or one inside the process."""

from __future__ import annotations

import re

import redis
import redis.asyncio

from broker_schemas.connection import RedisBroker, SentinelBroker, broker_at
from compose.trouble import UNREACHABLE, USAGE, Trouble

LOCAL_REDIS = "redis://127.0.0.1:6379/0"
_REDIS_7 = (7,)


def connect(url: str) -> RedisBroker | SentinelBroker:
    """The Redis server at `url`, or that Sentinel names, once it has answered. Raises Trouble."""
    try:
        broker = broker_at(url)
        broker.client().ping()
    except (ValueError, TypeError) as error:  # TypeError: a ?name= that no connection has
        raise Trouble(f"--broker {without_password(url)} is no Redis URL: {error}", USAGE) from error
    except redis.RedisError as error:
        raise Trouble(
            f"no Redis answers at {without_password(url)}: {error}\n"
            "Start one with `redis-server --appendonly yes --appendfsync always --maxmemory-policy noeviction`, "
            "or name another with --broker; `songline up` needs none",
            UNREACHABLE,
        ) from error
    return broker


def without_password(url: str) -> str:
    """A Redis URL as it may be shown."""
    return re.sub(r"(password=)[^&]*", r"\1…", re.sub(r"^([\w+]+://)?.*@", r"\1…@", url))


class EmbeddedBroker:
    """A Broker that threads and event loops of this process share, for one machine and no server: the same commands
    and scripts, on fakeredis. Nothing in it survives the process."""

    durable = False

    def __init__(self) -> None:
        import fakeredis

        self._fakeredis = fakeredis
        self._server = fakeredis.FakeServer(version=_REDIS_7)
        self._client = fakeredis.FakeRedis(server=self._server, version=_REDIS_7)

    def client(self) -> redis.Redis:
        return self._client

    def async_client(self) -> redis.asyncio.Redis:
        """A client for the running event loop; the caller closes it."""
        return self._fakeredis.FakeAsyncRedis(server=self._server, version=_REDIS_7)
