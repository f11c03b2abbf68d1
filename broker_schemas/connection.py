"""Connections to the broker, and how long they wait."""

from __future__ import annotations

from typing import Protocol

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.retry import Retry

# The longest that one read blocks; a connection is given up for dead some time after.
BLOCK_MS = 1000
_OPTIONS = {"socket_connect_timeout": 5, "socket_timeout": 15, "health_check_interval": 30, "protocol": 2}


class Broker(Protocol):
    """Where clients come from: a Redis server, or the one embedded in this process."""

    durable: bool

    def client(self) -> redis.Redis: ...

    def async_client(self) -> redis.asyncio.Redis: ...


class RedisBroker:
    """A Redis server by URL: redis://, rediss:// or unix://."""

    durable = True

    def __init__(self, url: str) -> None:
        self.url = url
        # What is sent again after a broken connection is only ever sent by callers who know that it may be.
        self._client = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **_OPTIONS)
        self._max_connections = 4096

    def client(self) -> redis.Redis:
        return self._client

    def async_client(self) -> redis.asyncio.Redis:
        """A client for the running event loop; the caller closes it."""
        retry = AsyncRetry(ExponentialBackoff(cap=0.5, base=0.05), 3)
        return redis.asyncio.Redis.from_url(self.url, retry=retry, max_connections=self._max_connections, **_OPTIONS)
