"""Writes a worker's events, in order, in a thread of its own: the step never waits for the broker."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import redis

from broker_schemas import keys, log
from broker_schemas.events import FINAL_TYPES, JobFailed, Payload, RowsFreed, SpanTerminal, SpanWindow
from broker_schemas.log import Refused
from workers.leases import Lease
from workers.signals import ring

logger = logging.getLogger(__name__)

_WAITING_MAX = 256  # events; a full queue holds the step back


@dataclass(frozen=True, slots=True)
class Entry:
    """An event to be written under a lease, with its companions; see `broker_schemas.log.append`."""

    lease: Lease
    payload: Payload
    owner: str
    ttl_ms: int
    companions: dict = field(default_factory=dict)
    written: Callable[[], None] | None = None


class Publisher(threading.Thread):
    """One FIFO per worker. A refused event marks its lease as over; a broken connection is tried until it mends."""

    def __init__(self, client: redis.Redis, *, model: str, worker: str, beat: Callable[[], None]) -> None:
        super().__init__(name="publisher", daemon=True)
        self._client = client
        self._run = log.Scripts(client)
        self._model = model
        self._worker = worker
        self._beat = beat
        self._queue: queue.Queue[Entry | None] = queue.Queue(_WAITING_MAX)
        self._abandoned = threading.Event()
        self.error: BaseException | None = None

    def put(self, entry: Entry) -> None:
        """Queue an event; waits while the queue is full."""
        while True:
            if self.error:
                raise self.error
            try:
                return self._queue.put(entry, timeout=0.5)
            except queue.Full:
                self._beat()  # waiting for the broker is not being stuck

    def run(self) -> None:
        try:
            while (entry := self._queue.get()) is not None:
                self._write(entry)
        except BaseException as error:
            self.error = error
            logger.exception("the publisher died")

    def stop(self, timeout_s: float = 10.0) -> None:
        """Write what is queued, then end; after `timeout_s` what is left is given up, to be done by others."""
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            self._abandoned.set()
        self.join(timeout=timeout_s)
        self._abandoned.set()

    def _write(self, entry: Entry) -> None:
        lease, payload = entry.lease, entry.payload
        freed = isinstance(payload, RowsFreed)
        if lease.over and not freed:
            return
        try:
            self._patiently(lambda: self._append(entry))
        except Refused as refused:
            if not freed:
                lease.over = lease.over or self._why(refused, entry)
            return
        if self._abandoned.is_set():
            return
        self._patiently(lambda: self._point(entry))
        if entry.written:
            entry.written()

    def _append(self, entry: Entry) -> None:
        lease, payload = entry.lease, entry.payload
        role = "" if isinstance(payload, RowsFreed) else lease.role
        call = log.append(
            payload,
            job=lease.job,
            by=self._worker,
            token=lease.token,
            role=role,
            ttl_ms=entry.ttl_ms,
            **entry.companions,
        )
        log.appended(self._run(call), payload, lease.job)

    def _why(self, refused: Refused, entry: Entry) -> str:
        logger.info("%s", refused)
        if refused.status == "final":
            return refused.detail
        if refused.status == "conflict":
            message = f"{entry.payload.identity} was made twice, and differs: the same work gave other bytes"
            failure = JobFailed(code="nondeterministic", message=message, retryable=False)
            self._write(Entry(entry.lease, failure, entry.owner, entry.ttl_ms))
        return refused.status

    def _point(self, entry: Entry) -> None:
        """Log first, pointer second."""
        job, payload = entry.lease.job, entry.payload
        if isinstance(payload, (SpanWindow, SpanTerminal)):
            self._run(log.post_pointer(keys.ready(self._model), job))
            ring(self._client, self._model, keys.ACOUSTIC, job)
        if isinstance(payload, SpanTerminal):
            self._run(log.drop_pointer(keys.requests(self._model, entry.owner), job, keys.TALKER))
        if payload.type in FINAL_TYPES:
            retire(self._client, self._run, job, model=self._model, owner=entry.owner, ttl_ms=entry.ttl_ms)

    def _patiently(self, action: Callable[[], None]) -> None:
        """Do it, again while the broker is away: whatever is sent here may be sent twice."""
        pause = 0.05
        while not self._abandoned.is_set():
            try:
                return action()
            except redis.RedisError as error:
                logger.warning("the broker is away, trying again in %.2f s: %s", pause, error)
                if isinstance(error, (redis.ConnectionError, redis.TimeoutError)):
                    self._beat()  # any other error ends this process once the watchdog has seen enough
                time.sleep(pause)
                pause = min(pause * 2, 1.0)
        return None


def retire(client: redis.Redis, run: log.Scripts, job: str, *, model: str, owner: str, ttl_ms: int) -> None:
    """Clear a final job's traces in other slots. Doing so twice is harmless."""
    now_ms = int(time.time() * 1000)
    client.zadd(keys.EXPIRING, {f"{owner}/{job}": now_ms + ttl_ms}, nx=True)
    for call in log.retire(job, model=model, owner=owner):
        was_live, *_ = run(call)
    if not was_live:
        return
    pipeline = client.pipeline(transaction=False)
    pipeline.lpush(keys.RETIREMENTS, now_ms)
    pipeline.ltrim(keys.RETIREMENTS, 0, keys.RETIREMENTS_KEPT - 1)
    pipeline.expire(keys.RETIREMENTS, 3600)
    pipeline.execute()
