"""A job's sound as a listener hears it, chunk by chunk, over as many connections as it takes. Does no I/O."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from producer.errors import JobEnded, Unreachable
from producer.exchanges import FINAL, State, completed
from producer.sse import Reader
from producer.wav import SAMPLE_BYTES

if TYPE_CHECKING:
    import numpy as np

_TRIES = 5  # connections in a row that bring nothing, before a stream is given up
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Chunk:
    """One window's sound.

    pcm: interleaved 16-bit little-endian samples. start_sample: where it begins in the whole, per channel. sha256: of
    `pcm`, in hex, as the job's log has it.
    """

    index: int
    pcm: bytes
    start_sample: int
    sample_rate: int
    channels: int
    sha256: str

    @classmethod
    def of(cls, told: dict[str, Any]) -> Chunk:
        """An `audio.chunk` message's content."""
        kept = {name: told[name] for name in ("index", "start_sample", "sample_rate", "channels", "sha256")}
        return cls(pcm=base64.b64decode(told["audio"]), **kept)

    @property
    def seconds(self) -> float:
        return len(self.pcm) / (SAMPLE_BYTES * self.channels * self.sample_rate)

    def numpy(self) -> np.ndarray:
        """(samples, channels) int16; needs numpy."""
        import numpy as np

        return np.frombuffer(self.pcm, "<i2").reshape(-1, self.channels)


class SoundStream:
    """Where a job's listener is: what to ask for next, what a line brings, and when to give up."""

    def __init__(self, url: str, job: str, after: int = -1) -> None:
        """`after`: the index of the last chunk that is known already."""
        self.path = f"/v1/jobs/{job}/stream"
        self.end: State = {}  # the completed job, once all is heard
        self._url = url
        self._job = job
        self._last = str(after)
        self._tries = 0
        self._reader = Reader()

    @property
    def headers(self) -> dict[str, str]:
        return {"Accept": "text/event-stream", "Last-Event-ID": self._last}

    def line(self, line: str) -> Chunk | None:
        """The chunk that a line of the stream completes. Raises JobEnded where it tells of an end without the rest."""
        message = self._reader.line(line)
        if message is None:
            return None
        self._last, self._tries = message.id or self._last, 0
        if message.event == "audio.chunk":
            return Chunk.of(message.json())
        if message.event == "expired":
            error = message.json()["error"]
            raise JobEnded(self._job, "expired", error["message"], error["code"], retryable=True)
        if message.event in FINAL:
            completed(message.json())
            self.end = message.json()
        return None

    def pause(self, broken: Exception | None) -> float:
        """The connection is over before the job: seconds to wait before the next one. Raises Unreachable."""
        self._reader = Reader()
        self._tries += 1
        if self._tries == _TRIES:
            why = "the stream ends before the job does" if broken is None else str(broken) or type(broken).__name__
            raise Unreachable(self._url, why) from broken
        return _PAUSE_S * 2**self._tries
