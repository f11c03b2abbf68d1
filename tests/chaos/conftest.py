"""Worker processes on a redis-server that a test may kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from broker_schemas.connection import RedisBroker
from broker_schemas.events import JobRequested
from producer.submit import JobIds, Limits, Producer
from tests.redis_server import RedisServer
from tests.stand_ins import request
from tests.tiny_checkpoint import tiny_checkpoint
from tests.utterances import utterance

LYRICS = "[verse]\nHold the line, hold the light\n[chorus]\nAll night long"


class Nursery:
    """Forks workers of one model; see tests/chaos/nursery.py."""

    def __init__(self, url: str, log: Path, *model: str) -> None:
        root = Path(__file__).parents[2]
        self.log = log
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.nursery", url, *model], cwd=root, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"),
        )  # fmt: skip
        if "ready" not in self._process.stdout.readline():
            raise RuntimeError(log.read_text())
        self.pids: list[int] = []
        self.model = model[0]

    def song(self, seed: int, frames: int, **params: Any) -> JobRequested:
        if self.model == "instant":
            return request(seed, frames, params=params)
        if self.model == "minimax_music3":
            params = {"instructions": "a quick waltz"} | params
            return request(seed, frames, model=self.model, input=LYRICS, params=params)
        spoken = utterance(seed, frames=frames, **params).request
        return request(seed, frames, model=self.model, input=spoken.input, params=spoken.params)

    def start(self, role: str) -> int:
        self._process.stdin.write(f"{role}\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        self.pids.append(pid)
        return pid

    def kill(self, pid: int, how: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)

    def clear(self) -> None:
        """Kill all workers."""
        for pid in self.pids:
            self.kill(pid, signal.SIGCONT)
            self.kill(pid)
        self.pids.clear()

    def close(self) -> None:
        self.clear()
        self._process.kill()
        self._process.wait()


@pytest.fixture
def server(tmp_path):
    server = RedisServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def nursery(server, tmp_path, request):
    """Workers of the instant model; of the real architecture at its tiny size where a test says for how many jobs."""
    max_jobs = getattr(request, "param", None)
    model = ("minimax_music3", str(tiny_checkpoint()), str(max_jobs)) if max_jobs else ("instant",)
    nursery = Nursery(server.url, tmp_path / "workers.log", *model)
    yield nursery
    nursery.close()


@pytest.fixture
async def patron(server):
    """A producer on the test's own server."""
    client = RedisBroker(server.url).async_client()
    yield Producer(client, ids=JobIds(b"secret"), limits=Limits(ttl_s=60), name="test")
    await client.aclose()
