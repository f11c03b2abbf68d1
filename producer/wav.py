"""WAV of 16-bit PCM: its header, and a file written as its sound comes."""

from __future__ import annotations

import struct
from pathlib import Path

SAMPLE_BYTES = 2
UNKNOWN_LENGTH = 0xFFFFFFFF  # what players take as "to the end"


def wav_header(rate: int, channels: int, sound_bytes: int | None) -> bytes:
    """RIFF header of 16-bit PCM; None where the length is not known yet."""
    riff = body = UNKNOWN_LENGTH
    if sound_bytes is not None and sound_bytes + 36 < UNKNOWN_LENGTH:
        riff, body = sound_bytes + 36, sound_bytes
    frame = channels * SAMPLE_BYTES
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF", riff, b"WAVE", b"fmt ", 16, 1, channels, rate, rate * frame, frame, 8 * SAMPLE_BYTES, b"data", body,
    )  # fmt: skip


class WavFile:
    """A file of interleaved 16-bit little-endian PCM. Closed early, it is a WAV of what came. Raises OSError.

    As a context manager it removes the file where the block raises, so that no part is taken for the whole.
    """

    def __init__(self, path: str | Path, rate: int, channels: int) -> None:
        self._path = Path(path)
        self._shape = rate, channels
        self._sound_bytes = 0
        self._file = open(path, "wb")  # noqa: SIM115, `close` does
        self._file.write(wav_header(rate, channels, None))

    def write(self, pcm: bytes) -> None:
        self._file.write(pcm)
        self._file.flush()
        self._sound_bytes += len(pcm)

    def close(self) -> None:
        """Tells the length in the header, where the file is one and no pipe."""
        with self._file:
            if self._file.seekable():
                self._file.seek(0)
                self._file.write(wav_header(*self._shape, self._sound_bytes))

    def __enter__(self) -> WavFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind is not None and self._path.is_file():
            self._path.unlink()
