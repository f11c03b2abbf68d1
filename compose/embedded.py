"""A broker inside the process, for one machine and no server: the same commands and scripts, on fakeredis."""

from __future__ import annotations

import fakeredis
import redis
import redis.asyncio

_REDIS_7 = (7,)


class EmbeddedBroker:
    """A Broker that threads and event loops of this process share. Nothing in it survives the process."""

    durable = False

    def __init__(self) -> None:
        self._server = fakeredis.FakeServer(version=_REDIS_7)
        self._client = fakeredis.FakeRedis(server=self._server, version=_REDIS_7)

    def client(self) -> redis.Redis:
        return self._client

    def async_client(self) -> redis.asyncio.Redis:
        """A client for the running event loop; the caller closes it."""
        return fakeredis.FakeAsyncRedis(server=self._server, version=_REDIS_7)
