"""A line of the training texts, and its place in a file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_BETWEEN = " | "  # between the sentences of a line, in a file; it is no phoneme


@dataclass(frozen=True, slots=True)
class Line:
    """`id TAB text TAB phonemes` of a file.

    id: its origin and a number. sentences: the teacher's phonemes of each.
    """

    id: str
    text: str
    sentences: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """The name of its source, or the kind of template that made it."""
        return self.id.rpartition("-")[0]

    @property
    def phonemes(self) -> str:
        """As the student reads them."""
        return " ".join(self.sentences)

    def __str__(self) -> str:
        return f"{self.id}\t{self.text}\t{_BETWEEN.join(self.sentences)}"


def read(path: Path) -> list[Line]:
    """The lines of a file. Raises ValueError where one has not three fields."""
    fields = (line.split("\t") for line in path.read_text("utf-8").splitlines())
    return [Line(name, text, tuple(phonemes.split(_BETWEEN)) if phonemes else ()) for name, text, phonemes in fields]


def write(path: Path, lines: Iterable[Line]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
