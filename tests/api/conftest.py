"""A real server on a port, over each broker, and a client of it. The jobs' workers are a `Player`."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from api.app import create_app
from api.server import Server
from api.settings import ApiSettings
from producer.submit import Limits
from tests.api.player import HumContract, Player
from tests.waiting import PATIENCE_S

SETTINGS = ApiSettings(limits=Limits(ttl_s=60, max_jobs=100), keep_alive_s=15, name="api-test")


class Api:
    """A running api, its broker, and how a client reaches it."""

    def __init__(self, app, broker, server) -> None:
        self.app = app
        self.broker = broker
        self.server = server
        port = server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.ws_url = f"ws://127.0.0.1:{port}"
        self.http = httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_S)

    @property
    def service(self):
        return self.app.state.service

    async def submit(self, **fields) -> dict:
        answer = await self.http.post("/v1/jobs", json={"model": "hum", "input": "la la", "seed": 5} | fields)
        assert answer.status_code == 202, answer.text
        return answer.json()

    async def played(self, windows: int = 3, **fields) -> dict:
        """A completed job."""
        job = await self.submit(**fields)
        await asyncio.to_thread(Player(self.broker, job["id"]).play, job["seed"], windows)
        return job

    def player(self, job: dict) -> Player:
        return Player(self.broker, job["id"])


@asynccontextmanager
async def serving(broker, contracts=None, **changes):
    app = create_app(broker, contracts or {"hum": HumContract()}, replace(SETTINGS, **changes))
    server = Server(app, host="127.0.0.1", port=0, log_level="warning", grace_s=60)
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done(), task.exception()
        await asyncio.sleep(0.01)
    api = Api(app, broker, server)
    try:
        yield api
    finally:
        await api.http.aclose()
        server.should_exit = True
        await asyncio.wait_for(task, PATIENCE_S)


@pytest.fixture
async def api(broker):
    async with serving(broker) as api:
        yield api


@pytest.fixture
async def redis_api(real_broker):
    """For what does not depend on the kind of broker."""
    async with serving(real_broker) as api:
        yield api
