"""Stands in for the workers: writes a job's events and sound through the same scripts, a step at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from broker_schemas import keys, log
from broker_schemas.codec import Tensor, pack, unpack
from broker_schemas.contract import BadField, Contract, Order
from broker_schemas.events import (
    AudioChunk,
    JobAdmitted,
    JobCompleted,
    JobFailed,
    RowsFreed,
    SpanTerminal,
    SpanWindow,
)  # fmt: skip
from broker_schemas.heartbeat import Heartbeat

FRAMES, SAMPLES = 100, 4000  # of a window
TTL_MS = 60_000


class HumContract(Contract):
    """A model that hums: takes `instructions` and `max_new_tokens`, and no voice but "default"."""

    model = "hum"
    sample_rate = 32_000
    channels = 2
    frame_rate = 25.0
    fields = frozenset({"instructions", "max_new_tokens"})

    def accept(self, body: Mapping[str, Any]) -> Order:
        if body.get("voice", "default") != "default":
            raise BadField("voice", "hum has no voices: leave voice out.")
        frames = body.get("max_new_tokens", 500)
        if not isinstance(frames, int) or not 1 <= frames <= 9000:
            raise BadField("max_new_tokens", "max_new_tokens must be from 1 to 9000.")
        params = {"instructions": body.get("instructions", ""), "max_new_tokens": frames}
        return Order(input=body["input"], params=params, max_frames=frames, reserve_bytes=1_000_000)


def window_pcm(seed: int, index: int) -> bytes:
    """(SAMPLES, 2) int16: a tone that the seed and the window choose."""
    at = np.arange(SAMPLES)[:, None] + index * SAMPLES
    tone = 8000 * np.sin(at * np.array([0.05, 0.03]) * (1 + seed % 7 / 10))
    return tone.astype("<i2").tobytes()


def song(seed: int, windows: int) -> bytes:
    return b"".join(window_pcm(seed, index) for index in range(windows))


class Player:
    """One job's talker and acoustic worker."""

    def __init__(self, broker, job: str) -> None:
        self._client = broker.client()
        self._run = log.Scripts(self._client)
        self.job = job
        self.windows = 0
        self.seed = 0
        self.looped = False

    def _append(self, payload, **options: Any) -> None:
        status, *rest = self._run(log.append(payload, job=self.job, by="player", **options))
        assert status == "ok", (payload.type, status, rest)

    def admit(self, seed: int, profile: str = "p") -> None:
        self.seed = seed
        for role in keys.ROLES:
            self._append(
                JobAdmitted(role=role, worker="player", attempt=1, rows=2, profile=profile, token=f"t-{role}"),
                token="t",
            )

    def sound(self, windows: int = 1, *, last: bool = False) -> None:
        """The next windows: a span and its chunk each."""
        for step in range(windows):
            index = self.windows
            kind = SpanTerminal if last and step == windows - 1 else SpanWindow
            ends = {"reason": "stop", "looped": self.looped} if kind is SpanTerminal else {}
            codes = Tensor.of(np.full((FRAMES + (index == 0), 8), index, np.int16))
            self._append(
                kind(index=index, start_frame=index * FRAMES, frames=FRAMES, codes=codes, conditioning="0" * 64, **ends)
            )
            pcm = window_pcm(self.seed, index)
            sha256 = hashlib.sha256(pcm).hexdigest()
            self._append(AudioChunk(index=index, samples=SAMPLES, start_sample=index * SAMPLES, sha256=sha256), pcm=pcm)
            self.windows += 1

    def complete(self) -> None:
        done = JobCompleted(samples=self.windows * SAMPLES, frames=self.windows * FRAMES, reason="stop")
        self._append(done, ttl_ms=TTL_MS, after=self.windows)
        self._retire()

    def fail(self, *, retryable: bool = False, code: str = "no_frames") -> None:
        self._append(JobFailed(code=code, message="The song has no frames.", retryable=retryable), ttl_ms=TTL_MS)
        self._retire()

    def free_rows(self) -> None:
        self._append(RowsFreed(rows=2, step=9, why="cancelled", token="t-talker"))

    def play(self, seed: int, windows: int) -> None:
        """The whole song at once."""
        self.admit(seed)
        self.sound(windows, last=True)
        self.complete()

    def _retire(self) -> None:
        bytes_ = 4 * self.windows * SAMPLES
        for call in log.retire(self.job, model="hum", owner=self._owner(), ttl_ms=TTL_MS, bytes_=bytes_):
            self._run(call)

    def _owner(self) -> str:
        held = self._client.hget(keys.RESERVED, self.job)
        return held.split(b"\n")[0].decode() if held else "anonymous"

    def lose_request(self) -> None:
        """An event of a type that nobody knows stands where the log has its request."""
        stream = keys.log(self.job)
        (first, entry), *later = self._client.xrange(stream)
        unknown = unpack(entry[b"e"]) | {"type": "job.foreseen"}
        self._client.delete(stream)
        for id_, fields in [(first, entry | {b"e": pack(unknown)}), *later]:
            self._client.xadd(stream, fields, id=id_)

    def expire(self) -> None:
        """As if the TTL had passed."""
        self._client.delete(*keys.job_keys(self.job))


def beat(broker, role: str, *, at_ms: int, model: str = "hum") -> None:
    """A worker's heartbeat."""
    said = Heartbeat(worker=f"player-{role}-{model}", role=role, model=model, profile="p", at=at_ms)
    broker.client().hset(keys.WORKERS, said.worker, said.pack())
