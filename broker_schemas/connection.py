"""Connections to the broker, and how long they wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.retry import Retry

SENTINEL = "redis+sentinel"
_SENTINEL_PORT = 26379

# The longest that one read blocks; a connection is given up for dead some time after.
BLOCK_MS = 1000
_OPTIONS: dict[str, Any] = {
    "socket_connect_timeout": 5,
    "socket_timeout": 15,
    "health_check_interval": 30,
    "protocol": 2,
}


def _never_again() -> Retry:
    """What is sent again after a broken connection is only ever sent by callers who know that it may be."""
    return Retry(NoBackoff(), 0)


def _some_times() -> AsyncRetry:
    return AsyncRetry(ExponentialBackoff(cap=0.5, base=0.05), 3)


class Broker(Protocol):
    """Where clients come from: a Redis server, or the one embedded in this process."""

    durable: bool

    def client(self) -> redis.Redis: ...

    def async_client(self) -> redis.asyncio.Redis: ...


def broker_at(url: str) -> RedisBroker | SentinelBroker:
    """The broker at a URL. Raises ValueError for one that is none."""
    return SentinelBroker(url) if url.startswith(f"{SENTINEL}://") else RedisBroker(url)


class RedisBroker:
    """A Redis server by URL: redis://, rediss:// or unix://."""

    durable = True

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = redis.Redis.from_url(url, retry=_never_again(), **_OPTIONS)
        self._max_connections = 4096

    def client(self) -> redis.Redis:
        return self._client

    def async_client(self) -> redis.asyncio.Redis:
        """A client for the running event loop; the caller closes it."""
        return redis.asyncio.Redis.from_url(
            self.url, retry=_some_times(), max_connections=self._max_connections, **_OPTIONS
        )


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """redis+sentinel://[user:password@]host[:port][,host[:port]…]/service[/db][?sentinel_password=…]

    User and password are the servers'; those of the sentinels are sentinel_username and sentinel_password.
    """

    sentinels: tuple[tuple[str, int], ...]
    service: str
    server: dict[str, Any]
    sentinel: dict[str, Any]

    @staticmethod
    def parse(url: str) -> SentinelUrl:
        """Raises ValueError, saying what is missing."""
        parts = urlsplit(url)
        credentials, _, hosts = parts.netloc.rpartition("@")
        service, _, db = parts.path.strip("/").partition("/")
        if not hosts or not service:
            raise ValueError(f"{SENTINEL}:// needs sentinels and a service, as in {SENTINEL}://host:26379/mymaster/0")
        user, _, password = credentials.partition(":")
        server = {"username": unquote(user) or None, "password": unquote(password) or None, "db": int(db or 0)}
        asked = dict(parse_qsl(parts.query))
        sentinel = {name: asked.pop(f"sentinel_{name}", None) for name in ("username", "password")}
        if asked:
            known = "sentinel_username and sentinel_password"
            raise ValueError(f"{SENTINEL}:// knows no {sorted(asked)[0]!r}: there are {known}")
        return SentinelUrl(tuple(_address(host) for host in hosts.split(",")), service, server, sentinel)


def _address(host: str) -> tuple[str, int]:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError(f"{host!r} is no sentinel's address")
    return parts.hostname, parts.port or _SENTINEL_PORT


class SentinelBroker:
    """Whichever Redis server Sentinel says is the master of a service; see SentinelUrl."""

    durable = True

    def __init__(self, url: str) -> None:
        self.url = url
        self._stated = SentinelUrl.parse(url)
        self._client = self._master(redis.sentinel.Sentinel, _never_again())

    def client(self) -> redis.Redis:
        return self._client

    def async_client(self) -> redis.asyncio.Redis:
        """A client for the running event loop; the caller closes it."""
        return self._master(redis.asyncio.sentinel.Sentinel, _some_times())

    def _master(self, sentinel: type, retry: Any) -> Any:
        stated = self._stated
        asked = sentinel(stated.sentinels, sentinel_kwargs={**stated.sentinel, **_OPTIONS})
        return asked.master_for(stated.service, retry=retry, **stated.server, **_OPTIONS)
