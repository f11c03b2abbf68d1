"""A completed job's sound as a file: its size, its ETag, and any part of it."""

from __future__ import annotations

import asyncio
import bisect
import hashlib
import io
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from api.encoding import Encoder, Format, media_type
from broker_schemas import keys
from broker_schemas.contract import Contract
from broker_schemas.events import AudioChunk
from producer.follow import Chunk, Expired
from producer.submit import Producer
from producer.wav import SAMPLE_BYTES, wav_header

_READ_BYTES = 256 << 10


class AudioFile(Protocol):
    """A file that can be read in parts. The same `etag` means the same bytes."""

    size: int
    etag: str
    media_type: str

    def read(self, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """The bytes [start, stop); raises Expired where the job's keys go in the meantime."""
        ...


class PcmFile:
    """The chunks of the audio stream side by side, behind a header. Holds one chunk at a time."""

    def __init__(
        self, client: Any, job: str, chunks: list[AudioChunk], *, frame_bytes: int, header: bytes, media_type: str
    ) -> None:
        self._client = client
        self._job = job
        self._header = header
        # Where each chunk begins in the file, and where the last one ends.
        self._bounds = [len(header) + chunk.start_sample * frame_bytes for chunk in chunks]
        self.size = len(header) + sum(chunk.samples for chunk in chunks) * frame_bytes
        self._bounds.append(self.size)
        self.media_type = media_type
        self.etag = _etag(header, *(chunk.sha256.encode() for chunk in chunks))

    async def read(self, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        if start < len(self._header):
            yield self._header[start:stop]
        index = max(0, bisect.bisect_right(self._bounds, start) - 1)
        while index < len(self._bounds) - 1 and self._bounds[index] < stop:
            begins = self._bounds[index]
            pcm = await read_chunk(self._client, self._job, index)
            yield pcm[max(0, start - begins) : stop - begins]
            index += 1


class EncodedFile:
    """A file on disk, open for one reader, so that it may be evicted meanwhile."""

    def __init__(self, path: Path, etag: str, media_type: str) -> None:
        self._file = path.open("rb")
        self.size = path.stat().st_size
        self.etag = etag
        self.media_type = media_type

    async def read(self, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        with self._file as file:
            file.seek(start)
            while start < stop:
                piece = await asyncio.to_thread(file.read, min(_READ_BYTES, stop - start))
                if not piece:
                    raise EOFError(f"the file ends at {start}")
                start += len(piece)
                yield piece


class _Key(NamedTuple):
    job: str
    format: str
    sound: str  # sha256 over the chunks': a job that expired may be submitted again, and sound otherwise


class AudioFiles:
    """Gives out completed jobs' files; encodes each once, and keeps the newest within a budget of bytes."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._folder = tempfile.TemporaryDirectory(prefix="songline-files-")
        self._kept: OrderedDict[_Key, tuple[Path, str, int]] = OrderedDict()  # path, etag, size
        self._locks: weakref.WeakValueDictionary[_Key, asyncio.Lock] = weakref.WeakValueDictionary()

    async def open(self, producer: Producer, job: str, format_: Format, contract: Contract) -> AudioFile:
        """The file of a completed job; raises Unknown, Expired."""
        rate, channels = contract.sample_rate, contract.channels
        kind = media_type(format_, rate, channels)
        payloads = [event.payload for event in await producer.jobs.events(job)]
        chunks = [payload for payload in payloads if isinstance(payload, AudioChunk)]
        if not format_.sndfile:
            frame_bytes = channels * SAMPLE_BYTES
            sound_bytes = sum(chunk.samples for chunk in chunks) * frame_bytes
            header = wav_header(rate, channels, sound_bytes) if format_.name == "wav" else b""
            return PcmFile(producer.client, job, chunks, frame_bytes=frame_bytes, header=header, media_type=kind)
        sound = hashlib.sha256("".join(chunk.sha256 for chunk in chunks).encode()).hexdigest()
        key = _Key(job, format_.name, sound)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._kept:
                self._keep(key, *await self._encode(producer.client, job, len(chunks), format_, contract))
            self._kept.move_to_end(key)
            path, etag, _ = self._kept[key]
            return EncodedFile(path, etag, kind)

    def forget(self, job: str) -> None:
        for key in [key for key in self._kept if key.job == job]:
            self._drop(key)

    async def forget_gone(self, client: Any) -> None:
        """Drop the files of jobs that have expired, or were purged by another process."""
        for job in {key.job for key in self._kept}:
            if not await client.exists(keys.log(job)):
                self.forget(job)

    def close(self) -> None:
        self._folder.cleanup()

    def _keep(self, key: _Key, path: Path, etag: str) -> None:
        self._kept[key] = path, etag, path.stat().st_size
        while sum(size for *_, size in self._kept.values()) > self._budget and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: _Key) -> None:
        path, *_ = self._kept.pop(key)
        path.unlink(missing_ok=True)

    async def _encode(
        self, client: Any, job: str, chunks: int, format_: Format, contract: Contract
    ) -> tuple[Path, str]:
        """A new file, and its ETag."""
        number, name = tempfile.mkstemp(dir=self._folder.name, suffix=f".{format_.suffix}")
        path = Path(name)
        try:
            with open(number, "w+b") as target:
                encoder = await asyncio.to_thread(Encoder, target, format_, contract.sample_rate, contract.channels)
                with encoder:
                    for index in range(chunks):
                        await asyncio.to_thread(encoder.write, await read_chunk(client, job, index))
                    await asyncio.to_thread(encoder.close)
            with path.open("rb") as file:
                return path, await asyncio.to_thread(_file_etag, file)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


async def read_chunk(client: Any, job: str, index: int) -> bytes:
    """One chunk's PCM; raises Expired."""
    entries = await client.xrange(keys.audio(job), f"{index + 1}-0", f"{index + 1}-0")
    if not entries:
        raise Expired(job)
    return Chunk.of(entries[0]).pcm


def _etag(*parts: bytes) -> str:
    return f'"{hashlib.sha256(b"".join(parts)).hexdigest()[:32]}"'


def _file_etag(file: io.BufferedReader) -> str:
    return f'"{hashlib.file_digest(file, "sha256").hexdigest()[:32]}"'
