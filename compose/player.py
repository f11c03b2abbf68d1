"""A program of this machine that plays sound as it comes."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from compose.trouble import FAILED, Trouble
from producer.wav import WavFile, wav_header

PLAYERS = ("ffplay", "aplay", "paplay", "afplay")  # the first there is


class Player(Protocol):
    """Plays interleaved 16-bit PCM. Its block ends once all has been heard, or at once where the block raises.

    Raises Trouble where the program ends before the sound does.
    """

    def write(self, pcm: bytes) -> None: ...

    def __enter__(self) -> Player: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...


def player_here() -> str | None:
    """The player's name; None where there is none."""
    return next((name for name in PLAYERS if shutil.which(name)), None)


def player(rate: int, channels: int) -> Player:
    """Raises Trouble where there is none."""
    match player_here():
        case "ffplay":  # whose flags for raw sound differ from version to version
            shown = ["ffplay", "-nodisp", "-autoexit", "-loglevel", "error", "-f", "wav", "-i", "-"]
            return PipedPlayer(shown, wav_header(rate, channels, None))
        case "aplay":
            return PipedPlayer(["aplay", "-q", "-t", "raw", "-f", "S16_LE", "-r", str(rate), "-c", str(channels), "-"])
        case "paplay":
            return PipedPlayer(["paplay", "--raw", "--format=s16le", f"--rate={rate}", f"--channels={channels}"])
        case "afplay":
            return FilePlayer(["afplay"], rate, channels)
    raise Trouble(f"there is no player here: install one of {', '.join(PLAYERS)}, or give --out", FAILED)


class PipedPlayer:
    """One that reads its standard input."""

    def __init__(self, command: list[str], header: bytes = b"") -> None:
        self._name = command[0]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert self._process.stdin is not None  # as PIPE has it
        self._pipe = self._process.stdin
        self.write(header)

    def write(self, pcm: bytes) -> None:
        try:
            self._pipe.write(pcm)
            self._pipe.flush()
        except BrokenPipeError:
            raise _ended_early(self._name, self._process.wait()) from None

    def __enter__(self) -> PipedPlayer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._process.kill()
        with suppress(BrokenPipeError):
            self._pipe.close()
        code = self._process.wait()
        if code and kind is None:
            raise _ended_early(self._name, code)


class FilePlayer:
    """One that needs all of the sound before it begins."""

    def __init__(self, command: list[str], rate: int, channels: int) -> None:
        self._command = command
        self._folder = tempfile.TemporaryDirectory(prefix="songline-")
        self._path = Path(self._folder.name, "sound.wav")
        self._file = WavFile(self._path, rate, channels)

    def write(self, pcm: bytes) -> None:
        self._file.write(pcm)

    def __enter__(self) -> FilePlayer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._folder:
            self._file.close()
            if kind is None and (code := subprocess.run([*self._command, str(self._path)]).returncode):
                raise _ended_early(self._command[0], code)


def _ended_early(name: str, code: int) -> Trouble:
    return Trouble(f"{name} ended with code {code} before the sound did", FAILED)
