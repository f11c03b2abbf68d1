"""A WAV file, written as its sound comes."""

from __future__ import annotations

import wave
from pathlib import Path

from compose.trouble import USAGE, Trouble


def check_writable(path: Path | None) -> None:
    """Raise Trouble where a file could not be written in the end, before any work is done for it."""
    if path is None:
        return
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise Trouble(f"cannot write {path}: {error.strerror}", USAGE) from error
    if not existed:
        path.unlink()


class WavWriter:
    """Writes 16-bit PCM to a file, or only counts it where there is none. The file is whole once this is closed."""

    def __init__(self, path: Path | None, rate: int, channels: int) -> None:
        self.samples = 0  # per channel
        self._width = 2 * channels
        self._wave = None
        if path is not None:
            try:
                self._wave = wave.open(str(path), "wb")  # noqa: SIM115 - closed by __exit__
            except OSError as error:
                raise Trouble(f"cannot write {path}: {error.strerror}", USAGE) from error
            self._wave.setnchannels(channels)
            self._wave.setsampwidth(2)
            self._wave.setframerate(rate)

    def write(self, pcm: bytes) -> None:
        self.samples += len(pcm) // self._width
        if self._wave:
            self._wave.writeframes(pcm)

    def __enter__(self) -> WavWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._wave:
            self._wave.close()
