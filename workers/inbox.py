"""Pointers to jobs: who may be next. Group entries are hints; a job is owned by its lease alone."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import redis

from broker_schemas import keys, log


class Inbox:
    """A role's pointer streams: one per owner for requests, served in turn; one for ready jobs."""

    def __init__(self, client: redis.Redis, *, role: str, model: str, worker: str, min_idle_s: float) -> None:
        self._client = client
        self._run = log.Scripts(client)
        self._role = role
        self._model = model
        self._worker = worker
        self._min_idle_ms = int(min_idle_s * 1000)
        self._group = keys.group(role)
        self._grouped: set[str] = set()
        self._turn = ""  # the owner served last
        self._reclaimed_at = time.monotonic()
        self._found: deque[str] = deque()

    def new(self, count: int) -> list[str]:
        """Jobs that nobody was pointed to yet, owners in turn; fewer than `count` when there are no more."""
        jobs: list[str] = []
        streams = self._in_turn() if count else []
        while streams and len(jobs) < count:
            # Of one owner as many as there are; of several one each.
            asked = streams[: count - len(jobs)]
            found = self._read(asked, count - len(jobs) if len(streams) == 1 else 1)
            for stream, entries in found:
                self._turn = stream
                jobs += [entry[b"job"].decode() for _, entry in entries]
            more = [stream for stream, _ in found] if len(streams) > 1 else []
            streams = streams[len(asked) :] + more
        return jobs

    def reclaimed(self, count: int) -> list[str]:
        """Jobs that another worker was pointed to, and did not come to own or to finish; at most so many.

        All pending entries older than a lease's life are looked through, once in so long.
        """
        if not self._found and time.monotonic() - self._reclaimed_at > self._min_idle_ms / 1000:
            self._reclaimed_at = time.monotonic()
            for stream in self._in_turn():
                self._found += self._reclaim(stream)
        return [self._found.popleft() for _ in range(min(count, len(self._found)))]

    def drop(self, job: str, owner: str) -> None:
        """The job needs no one in this role any more."""
        self._run(log.drop_pointer(self._stream(owner), job, self._role))

    def _stream(self, owner: str) -> str:
        return keys.requests(self._model, owner) if self._role == keys.TALKER else keys.ready(self._model)

    def _in_turn(self) -> list[str]:
        if self._role == keys.ACOUSTIC:
            return [keys.ready(self._model)]
        owners: Any = self._client.smembers(keys.owners(self._model))
        streams = [self._stream(owner) for owner in sorted(owner.decode() for owner in owners)]
        later = [stream for stream in streams if stream > self._turn]
        return later + streams[: len(streams) - len(later)]

    def _read(self, streams: list[str], count: int) -> list[tuple[str, list[tuple[bytes, dict[bytes, bytes]]]]]:
        """(stream, entries) of each that has any, in their order; at most `count` of each."""
        for stream in streams:
            if stream not in self._grouped:
                self._make_group(stream)
        try:
            reply: Any = self._client.xreadgroup(self._group, self._worker, dict.fromkeys(streams, ">"), count=count)
        except redis.ResponseError as error:  # the group went with a broker that lost its newest writes
            if "NOGROUP" not in str(error):
                raise
            for stream in streams:
                self._make_group(stream)
            return []
        return [(stream.decode(), entries) for stream, entries in reply]

    def _make_group(self, stream: str) -> None:
        try:
            self._client.xgroup_create(stream, self._group, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._grouped.add(stream)

    def _reclaim(self, stream: str) -> list[str]:
        jobs: list[str] = []
        cursor: bytes | str = "0-0"
        while True:
            try:
                cursor, entries, *_ = self._client.xautoclaim(
                    stream, self._group, self._worker, self._min_idle_ms, cursor, count=64
                )
            except redis.ResponseError as error:
                if "NOGROUP" not in str(error):
                    raise
                return jobs
            jobs += [fields[b"job"].decode() for _, fields in entries if fields]
            if cursor in (b"0-0", "0-0"):
                return jobs
