"""What the acoustic stage is given of a job's frames, window by window: the spans stream's conditioning, or codes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import redis

from broker_schemas import keys
from broker_schemas.codec import unpack
from broker_schemas.events import Event, Span


class Frames(Protocol):
    """A job's frames, in order."""

    def take(self, events: Iterable[Event]) -> None:
        """These events of the job's log are new."""
        ...

    def frames(self, start: int, end: int) -> np.ndarray:
        """(end - start, width) of the frames [start, end). Raises MissingFrames."""
        ...

    def trim_after(self, end: int) -> str:
        """The first spans entry that is still needed once all frames before `end` are had; '' if none can go."""
        ...


class MissingFrames(Exception):
    """Frames that the log says were sent are not in the spans stream."""


class Conditioning:
    """Reads a job's conditioning in order, each frame once.

    `shared` are the frames from `first` on that the carry already holds.
    """

    def __init__(self, client: redis.Redis, job: str, *, first: int, shared: np.ndarray | None) -> None:
        self._client = client
        self._job = job
        self._first = first  # frame of the first row held
        self._rows: list[np.ndarray] = [] if shared is None else [shared]
        self._held = 0 if shared is None else len(shared)
        self._entry = b"-"  # newest entry read
        self._ends: list[tuple[int, bytes]] = []  # (frame after its last, entry id) of the entries read

    def take(self, events: Iterable[Event]) -> None:
        pass

    def frames(self, start: int, end: int) -> np.ndarray:
        """(end - start, width) float32; frames before `start` are forgotten. Raises MissingFrames."""
        while self._first + self._held < end:
            self._read_on()
        rows = np.concatenate(self._rows) if len(self._rows) > 1 else self._rows[0]
        rows = rows[start - self._first :]
        self._rows, self._first, self._held = [rows], start, len(rows)
        return rows[: end - start]

    def trim_after(self, end: int) -> str:
        """The first spans entry that is still needed once all frames before `end` are had; '' if none can go."""
        done = [entry for last, entry in self._ends if last <= end]
        self._ends = [(last, entry) for last, entry in self._ends if last > end]
        if not done:
            return ""
        span, _, first = done[-1].decode().partition("-")
        return f"{span}-{int(first) + 1}"

    def _read_on(self) -> None:
        after = self._entry if self._entry == b"-" else b"(" + self._entry
        entries: Any = self._client.xrange(keys.spans(self._job), min=after, count=1)
        if not entries:
            raise MissingFrames(f"frame {self._first + self._held} of job {self._job} is not in its spans stream")
        entry, fields = entries[0]
        self._entry = entry
        part = unpack(fields[b"x"])
        rows = part["x"].numpy()
        start = part["start"]
        self._ends.append((start + len(rows), entry))
        expected = self._first + self._held
        if start > expected:
            raise MissingFrames(f"frame {expected} of job {self._job} was expected, and frame {start} came")
        rows = rows[expected - start :]  # the carry may hold an entry's first frames already
        self._rows.append(rows)
        self._held += len(rows)


class LoggedCodes:
    """The frames' codes as the log's spans have them, for a stage that needs no more; all are kept."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._spans: list[np.ndarray] = []
        self._frames = 0

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event.payload, Span):
                span = event.payload
                self._spans.append(span.codes.numpy()[-span.frames :])
                self._frames += span.frames

    def frames(self, start: int, end: int) -> np.ndarray:
        """(end - start, codebooks) int16."""
        if end > self._frames:
            raise MissingFrames(f"frame {self._frames} of job {self._job} is not in its log")
        if len(self._spans) > 1:
            self._spans = [np.concatenate(self._spans)]
        return self._spans[0][start:end]

    def trim_after(self, end: int) -> str:
        return ""
