"""How far a song is: a line that moves on a terminal, a line a chunk elsewhere."""

from __future__ import annotations

import sys
from typing import TextIO

_PER_CELL = 2.0  # seconds of sound
_CELLS = 40


class Progress:
    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._moves = self._stream.isatty()
        self._shown = -1.0

    def show(self, audio: float, took: float) -> None:
        """`audio` seconds of sound are there after `took` seconds."""
        if audio == self._shown:
            return
        self._shown = audio
        text = f"{audio:7.2f} s of sound after {took:6.2f} s"
        if self._moves:
            cells = min(_CELLS, int(audio / _PER_CELL))
            self._stream.write(f"\r\x1b[K{'█' * cells}{'░' * (_CELLS - cells)} {text}")
        else:
            self._stream.write(text.strip() + "\n")
        self._stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._moves and self._shown >= 0:
            self._stream.write("\n")
