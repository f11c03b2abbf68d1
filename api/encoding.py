"""File formats: what the sound is written as, whole or as it comes."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import soundfile

from api.resampling import Upsampler
from producer.wav import wav_header

_OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)
_FRAMES_AT_ONCE = 16_384  # libsndfile's Ogg writers keep a block on the stack


@dataclass(frozen=True, slots=True)
class Format:
    """`sndfile` is what libsndfile is told; empty for what is written here."""

    name: str
    media_type: str
    suffix: str
    sndfile: dict[str, Any] = field(default_factory=dict)


FORMATS = {
    f.name: f
    for f in (
        Format("wav", "audio/wav", "wav"),
        Format("pcm", "audio/pcm", "pcm"),
        Format("flac", "audio/flac", "flac", {"format": "FLAC", "subtype": "PCM_16"}),
        # At a constant rate a player knows the length of a stream whose header could not say it.
        Format("mp3", "audio/mpeg", "mp3", {"format": "MP3", "bitrate_mode": "CONSTANT", "compression_level": 0.4}),
        Format("opus", "audio/ogg", "opus", {"format": "OGG", "subtype": "OPUS", "compression_level": 0.4}),
    )
}


def media_type(format_: Format, rate: int, channels: int) -> str:
    if format_.name == "pcm":
        return f"audio/pcm;rate={rate};channels={channels}"
    return "audio/ogg;codecs=opus" if format_.name == "opus" else format_.media_type


class Encoder:
    """Writes interleaved 16-bit PCM into `target` as FLAC, MP3 or Ogg Opus. Not for the event loop: it computes.

    `close` makes the file whole; as a context manager, it lets go of `target` in any case.
    """

    def __init__(self, target: BinaryIO | Tail, format_: Format, rate: int, channels: int) -> None:
        self._channels = channels
        self._lossless = format_.name == "flac"
        self._upsampler = None
        if format_.name == "opus" and rate not in _OPUS_RATES:
            self._upsampler = Upsampler(rate, 48_000, channels)
            rate = 48_000
        self._file = soundfile.SoundFile(target, "w", rate, channels, **format_.sndfile)

    def write(self, pcm: bytes) -> None:
        samples = np.frombuffer(pcm, "<i2").reshape(-1, self._channels)
        if self._lossless:
            self._write(samples)
            return
        # libsndfile's MP3 writer gets stereo wrong that is handed to it as int16.
        floats = samples.astype(np.float32) / 32_768
        self._write(self._upsampler.add(floats) if self._upsampler else floats)

    def close(self) -> None:
        if self._upsampler is not None:
            self._write(self._upsampler.end())
        self._file.close()

    def __enter__(self) -> Encoder:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _write(self, samples: np.ndarray) -> None:
        for start in range(0, len(samples), _FRAMES_AT_ONCE):
            self._file.write(samples[start : start + _FRAMES_AT_ONCE])


class Tail(io.RawIOBase):
    """A file of which what was taken is gone. An encoder's late corrections of its header are dropped."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._taken = 0
        self._at = 0

    def take(self) -> bytes:
        taken = bytes(self._kept)
        self._taken += len(taken)
        self._kept.clear()
        return taken

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        piece = bytes(piece)
        at = self._at - self._taken
        late = max(0, -at)  # bytes that would fall before what is kept
        if late < len(piece):
            start = at + late
            self._kept[start : start + len(piece) - late] = piece[late:]
        self._at += len(piece)
        return len(piece)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._taken + len(self._kept)}[whence]
        self._at = origin + offset
        return self._at

    def tell(self) -> int:
        return self._at


async def encoded(pcm: AsyncIterator[bytes], format_: Format, rate: int, channels: int) -> AsyncGenerator[bytes, None]:
    """The file's bytes as the sound comes. Its header says that the length is unknown, where it says anything."""
    if not format_.sndfile:
        header = wav_header(rate, channels, None) if format_.name == "wav" else b""
        async for piece in pcm:
            yield header + piece
            header = b""
        if header:
            yield header
        return
    tail = Tail()
    encoder = await asyncio.to_thread(Encoder, tail, format_, rate, channels)
    async for piece in pcm:
        await asyncio.to_thread(encoder.write, piece)
        if ready := tail.take():
            yield ready
    await asyncio.to_thread(encoder.close)
    if ready := tail.take():
        yield ready
