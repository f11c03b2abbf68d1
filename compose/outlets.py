"""Where a command's sound goes as it comes: a file, standard output, a player."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from compose.player import PLAYERS, player, player_here
from compose.trouble import FAILED, USAGE, Trouble
from producer.wav import WavFile, wav_header

FORMATS = ("wav", "pcm")
STDOUT = Path("-")


class Outlet(Protocol):
    def write(self, pcm: bytes) -> object: ...


class Pipe:
    """A stream that is never gone back in: a WAV header there does not tell the length."""

    def __init__(self, stream: BinaryIO, header: bytes) -> None:
        self._stream = stream
        self.write(header)

    def write(self, piece: bytes) -> None:
        self._stream.write(piece)
        self._stream.flush()


def check(out: Path | None, format_: str, *, play: bool | None) -> None:
    """Raise Trouble where the sound could not go where it is to, before any work is done for it."""
    if format_ not in FORMATS:
        raise Trouble(f"--format {format_} is not known: it may be {' or '.join(FORMATS)}", USAGE)
    if play and player_here() is None:
        raise Trouble(f"there is no player here: install one of {', '.join(PLAYERS)}, or give --out", USAGE)
    if out != STDOUT:
        check_writable(out)


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


@contextmanager
def opened(out: Path | None, format_: str, *, play: bool | None, rate: int, channels: int) -> Iterator[list[Outlet]]:
    """The outlets that are asked for, for as long as the block runs; a file is whole afterwards, whatever has come.

    Raises Trouble; BrokenPipeError where nobody reads standard output any more.
    """
    with ExitStack() as stack:
        outlets: list[Outlet] = []
        try:
            if out == STDOUT:
                outlets.append(Pipe(sys.stdout.buffer, wav_header(rate, channels, None) if format_ == "wav" else b""))
            elif out is not None:
                file = WavFile(out, rate, channels) if format_ == "wav" else out.open("wb")
                outlets.append(stack.enter_context(closing(file)))
            if play:
                outlets.append(stack.enter_context(player(rate, channels)))
            yield outlets
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Trouble(f"the sound cannot be put out: {error}", FAILED) from error
