"""Writes a worker's events, in order, in a thread of its own: the step never waits for the broker."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import redis
from redis.exceptions import OutOfMemoryError, ReadOnlyError

from broker_schemas import keys, log
from broker_schemas.events import (
    FINAL_TYPES,
    CodesLogged,
    JobFailed,
    Payload,
    RowsFreed,
    SpanTerminal,
    SpanWindow,
)
from broker_schemas.log import Refused
from workers.leases import Lease, Watchdog
from workers.signals import ring

logger = logging.getLogger(__name__)

_EVENTS_MAX = 256  # waiting to be written; a full queue holds the step back
_BYTES_MAX = 64 << 20
_BATCH_EVENTS, _BATCH_BYTES = 64, 4 << 20  # written together at most
_MENDS = (redis.ConnectionError, redis.TimeoutError, OutOfMemoryError, ReadOnlyError)  # by itself, or by an operator
_MENDED = ("MISCONF", "NOREPLICAS")  # so too errors that begin with these
_COUNTED = (SpanWindow, SpanTerminal, CodesLogged)  # refused out of their order
_LAST_WORDS_S = 10.0  # how long a worker that leaves waits for the broker


@dataclass(frozen=True, slots=True)
class Entry:
    """An event to be written under a lease, with its companions; see `broker_schemas.log.append`.

    `settled` is called once its fate is known, with whether it was written and the lease still holds; `lease.over` says
    why not.
    """

    lease: Lease
    payload: Payload
    owner: str
    ttl_ms: int
    companions: dict[str, Any] = field(default_factory=dict)
    settled: Callable[[bool], None] | None = None

    @property
    def size(self) -> int:
        parts = sum(len(part) for _, part in self.companions.get("conditioning", ()))
        return parts + len(self.companions.get("pcm", b"")) + len(self.companions.get("carry", b""))


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the queue, where nothing is written: `settled` is called once all that was queued before is settled.

    It is told False, as nothing was written.
    """

    settled: Callable[[bool], None]
    size: ClassVar[int] = 0


class Publisher(threading.Thread):
    """One FIFO per worker. A refused event marks its lease as over; a broken connection is tried until it mends.

    Args:
        watchdog: this thread's; it is not stuck while the broker is away.
        waiting: called by a `put` that has to wait, so that the step's thread does not pass for stuck.

    `leaving` says whether the worker is about to go: from then on nobody waits for long. `error` is what the thread
    died of; nothing is written after that.
    """

    def __init__(
        self, client: redis.Redis, *, model: str, worker: str, watchdog: Watchdog, waiting: Callable[[], None]
    ) -> None:
        super().__init__(name="publisher", daemon=True)
        self._client = client
        self._run = log.Scripts(client)
        self._model = model
        self._worker = worker
        self._watchdog = watchdog
        self._waiting = waiting
        self._entries: deque[Entry | Mark] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._abandoned = threading.Event()
        self._patient_until: float | None = None
        self.leaving: Callable[[], bool] = lambda: False
        self.error: BaseException | None = None

    def put(self, entry: Entry | Mark) -> None:
        """Queue an event or a mark; waits while the queue is full. Gives the event up where that lasts when leaving."""
        with self._changed:
            while self._full(entry) and not (self.error or self._out_of_patience()):
                self._waiting()
                self._changed.wait(0.5)
            if not (self.error or self._full(entry)):
                self._entries.append(entry)
                self._bytes += entry.size
                self._changed.notify_all()
                return
        self._settle(entry, False)

    def _full(self, entry: Entry | Mark) -> bool:
        return len(self._entries) >= _EVENTS_MAX or (self._bytes > 0 and self._bytes + entry.size > _BYTES_MAX)

    def run(self) -> None:
        try:
            while batch := self._next():
                fates = self._write(batch)
                with self._changed:
                    self._bytes -= sum(entry.size for entry in batch)
                    self._changed.notify_all()
                for entry, written in zip(batch, fates, strict=True):
                    self._watchdog.beat()
                    self._settle(entry, written)
        except BaseException as error:
            logger.exception("the publisher died")
            with self._changed:
                self.error = error
                self._changed.notify_all()

    def stop(self) -> None:
        """Write what is queued, then end; what cannot be written for long is given up, to be done by others."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.join(timeout=_LAST_WORDS_S)
        self._abandoned.set()

    def _next(self) -> list[Entry | Mark]:
        """What is written together next; nothing once the queue is closed and empty."""
        with self._changed:
            while not self._entries:
                self._watchdog.beat()
                if self._closed:
                    return []
                self._changed.wait(0.5)
            self._watchdog.beat()
            batch = [self._entries.popleft()]
            size = batch[0].size
            while self._entries and len(batch) < _BATCH_EVENTS and size < _BATCH_BYTES:
                if not _can_follow(self._entries[0], batch):
                    break
                batch.append(self._entries.popleft())
                size += batch[-1].size
            return batch

    def _out_of_patience(self) -> bool:
        """Whether the worker has been leaving for so long that nobody waits any more."""
        if not self.leaving():
            return False
        self._patient_until = self._patient_until or time.monotonic() + _LAST_WORDS_S
        return time.monotonic() > self._patient_until

    def _settle(self, entry: Entry | Mark, written: bool) -> None:
        if entry.settled:
            entry.settled(written)

    def _write(self, batch: Sequence[Entry | Mark]) -> list[bool]:
        """Write events, all of them before any pointer; for each whether it is logged, and its lease still holds."""
        events = [entry for entry in batch if isinstance(entry, Entry)]
        due = [entry for entry in events if _is_freed(entry) or not entry.lease.over]
        logged: list[Entry] = []
        self._patiently(lambda: self._append(due, logged))
        self._patiently(lambda: self._point(logged))
        for entry in logged:
            if entry.payload.type in FINAL_TYPES:
                self._patiently(partial(self._retire, entry))
        sure = set() if self._abandoned.is_set() else {id(entry) for entry in logged if not entry.lease.over}
        return [id(entry) in sure for entry in batch]

    def _append(self, due: list[Entry], logged: list[Entry]) -> None:
        """Append events in their order. Those whose fate is known leave `due`; what was written goes to `logged`.

        Raises:
            RedisError: one could not be sent, or not be written. It is the first in `due` then, and what was sent after
                it is sent again: it may have been refused for want of this one.
        """
        for reply in self._run.many([self._call(entry) for entry in due]):
            if isinstance(reply, Exception):
                raise reply
            entry = due.pop(0)
            try:
                log.appended(reply, entry.payload, entry.lease.job)
            except Refused as refused:
                if not _is_freed(entry):
                    entry.lease.over = entry.lease.over or self._why(refused, entry)
            else:
                logged.append(entry)

    def _call(self, entry: Entry) -> log.Call:
        lease, role = entry.lease, "" if _is_freed(entry) else entry.lease.role
        return log.append(
            entry.payload, job=lease.job, by=self._worker, token=lease.token, role=role, ttl_ms=entry.ttl_ms,
            **entry.companions,
        )  # fmt: skip

    def _why(self, refused: Refused, entry: Entry) -> str:
        logger.info("%s", refused)
        if refused.status == "final":
            return refused.detail
        if refused.status == "conflict":
            message = f"{entry.payload.identity} was made twice, and differs: the same work gave other bytes"
            failure = JobFailed(code="nondeterministic", message=message, retryable=False)
            self._write([Entry(entry.lease, failure, entry.owner, entry.ttl_ms)])
        return refused.status

    def _point(self, logged: list[Entry]) -> None:
        """Log first, pointer second."""
        spans = [entry for entry in logged if isinstance(entry.payload, (SpanWindow, SpanTerminal))]
        if not spans:
            return
        jobs = dict.fromkeys(entry.lease.job for entry in spans)
        calls = [log.post_pointer(keys.ready(self._model), job) for job in jobs]
        for entry in spans:
            if isinstance(entry.payload, SpanTerminal):
                calls.append(log.drop_pointer(keys.requests(self._model, entry.owner), entry.lease.job, keys.TALKER))

        def tell(pipeline: redis.client.Pipeline) -> None:
            for job in jobs:
                ring(pipeline, self._model, keys.ACOUSTIC, job)

        self._run.all(calls, then=tell)

    def _retire(self, entry: Entry) -> None:
        job, owner, ttl_ms = entry.lease.job, entry.owner, entry.ttl_ms
        if not retire(self._client, self._run, job, model=self._model, owner=owner, ttl_ms=ttl_ms):
            entry.lease.over = entry.lease.over or "gap"

    def _patiently(self, action: Callable[[], None]) -> None:
        """Do it, again while the broker is away: whatever is sent here may be sent twice."""
        pause = 0.05
        while not self._abandoned.is_set():
            try:
                return action()
            except redis.RedisError as error:
                logger.warning("the broker is away, trying again in %.2f s: %s", pause, error)
                if isinstance(error, _MENDS) or str(error).startswith(_MENDED):
                    self._watchdog.beat()  # any other error ends this process once the watchdog has seen enough
                time.sleep(pause)
                pause = min(pause * 2, 1.0)
        return None


def _can_follow(entry: Entry | Mark, batch: list[Entry | Mark]) -> bool:
    """Whether an event may be sent before it is known that those of its job in the batch are written.

    It may where it is refused if one of them is missing. What is heard may not: it must not follow what was refused
    since it differs from what was heard before.
    """
    if isinstance(entry, Mark):
        return True
    own = [other.payload for other in batch if isinstance(other, Entry) and other.lease.job == entry.lease.job]
    return not own or all(isinstance(payload, _COUNTED) for payload in (*own, entry.payload))


def _is_freed(entry: Entry) -> bool:
    """Whether it says that rows were freed, which needs no lease."""
    return isinstance(entry.payload, RowsFreed)


def retire(client: redis.Redis, run: log.Scripts, job: str, *, model: str, owner: str, ttl_ms: int) -> bool:
    """Clear a final job's traces in other slots. Doing so twice is harmless.

    False, and the job is live as before, where the broker has lost its final event in the meantime.
    """
    bytes_ = int(client.hget(keys.head(job), "bytes") or 0)
    *_, (_, held, *_) = run.all(log.retire(job, model=model, owner=owner, ttl_ms=ttl_ms, bytes_=bytes_))
    if client.hexists(keys.head(job), "final") or not client.exists(keys.log(job)):
        return True
    run(log.hold(job, bytes_=held, owner=owner, model=model))
    return False
