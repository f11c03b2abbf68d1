"""What a worker is told while it works: cancelled jobs, and jobs to look at. Hints: polling finds what they miss."""

from __future__ import annotations

import logging
import threading
from typing import Any

import redis
from redis.typing import EncodableT, FieldT, KeyT, StreamIdT

from broker_schemas import keys
from broker_schemas.connection import BLOCK_MS

logger = logging.getLogger(__name__)


class Signals(threading.Thread):
    """Listens to the tombstones and to a role's bell in one read."""

    def __init__(self, client: redis.Redis, *, model: str, role: str) -> None:
        super().__init__(name="signals", daemon=True)
        self._client = client
        self._bell = keys.bell(model, role)
        # From now on; what was before is in the logs.
        self._cursors = {stream: self._newest(stream) for stream in (keys.TOMBSTONES, self._bell)}
        self._cancelled: set[str] = set()
        self._rung: set[str] = set()
        self._lapsed: set[str] = set()
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._listen()
            except redis.RedisError:
                self._stopped.wait(0.2)
            except Exception:
                logger.exception("signals were missed: polling finds what they told")
                self._stopped.wait(0.2)

    def _listen(self) -> None:
        since: dict[KeyT, StreamIdT] = {stream: cursor for stream, cursor in self._cursors.items()}
        reply: Any = self._client.xread(since, block=BLOCK_MS)
        if not reply:
            self._follow_a_restart()
        for stream, entries in reply or ():
            name = stream.decode()
            self._cursors[name] = entries[-1][0]
            with self._lock:
                for _, fields in entries:
                    self._note(name, fields)
            self._news.set()

    def _note(self, stream: str, fields: dict[bytes, bytes]) -> None:
        job = fields[b"job"].decode()
        if stream == keys.TOMBSTONES:
            self._cancelled.add(job)
        elif fields.get(b"why") == b"lapsed":
            self._lapsed.add(job)
        else:
            self._rung.add(job)

    def _newest(self, stream: str) -> bytes:
        """The newest entry's id."""
        newest: Any = self._client.xrevrange(stream, count=1)
        return newest[0][0] if newest else b"0-0"

    def _follow_a_restart(self) -> None:
        """A broker that lost its newest writes hands out lower ids again: go back to its newest."""
        for stream, cursor in self._cursors.items():
            last = self._newest(stream)
            if _order(last) < _order(cursor):
                self._cursors[stream] = last

    def _drain(self, jobs: set[str]) -> set[str]:
        with self._lock:
            drained = set(jobs)
            jobs.clear()
        return drained

    def wake(self) -> None:
        """End a wait: there is something to do that no bell was rung for."""
        self._news.set()

    def cancelled(self) -> set[str]:
        """Jobs whose tombstones came since the last call."""
        return self._drain(self._cancelled)

    def rung(self) -> set[str]:
        """Jobs that the bell was rung for since the last call."""
        return self._drain(self._rung)

    @property
    def has_lapsed(self) -> bool:
        """Whether `lapsed` has any."""
        return bool(self._lapsed)

    def lapsed(self) -> set[str]:
        """Jobs that lost their owner, and may be taken at once."""
        return self._drain(self._lapsed)

    def wait(self, seconds: float) -> None:
        """Until something comes, or the time is out."""
        self._news.wait(seconds)
        self._news.clear()

    def stop(self) -> None:
        self._stopped.set()
        self._news.set()


def _order(entry_id: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.decode().partition("-")
    return int(milliseconds), int(sequence or 0)


def ring(client: redis.Redis, model: str, role: str, job: str, *, lapsed: bool = False) -> None:
    """Tell a role's workers to look at a job."""
    fields: dict[FieldT, EncodableT] = {"job": job, "why": "lapsed"} if lapsed else {"job": job}
    client.xadd(keys.bell(model, role), fields, maxlen=keys.BELLS_KEPT)
