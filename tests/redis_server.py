"""A real redis-server for tests, that can be killed and come back."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import redis

from tests.ports import free_port
from tests.waiting import PATIENCE_S

BINARY = shutil.which("redis-server")


class RedisServer:
    """redis-server as compose runs it: append-only file, synced at every write, no eviction."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = options
        self._process: subprocess.Popen | None = None
        self.start()

    def start(self) -> None:
        command = [
            BINARY, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", "",
            "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction", *self._options,
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = redis.Redis(port=self.port)
        ends = time.monotonic() + PATIENCE_S
        while self._process.poll() is None and time.monotonic() < ends:
            try:
                client.ping()
                return
            except redis.RedisError:
                time.sleep(0.02)
        raise RuntimeError(f"redis-server did not start: {command}")

    def kill(self) -> None:
        """kill -9."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def append_only_file(self) -> Path:
        """The newest incremental part."""
        return max(self.folder.glob("appendonlydir/*.incr.aof"), key=lambda path: path.stat().st_mtime)
