"""A line of the training texts, and its place in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Line:
    """`id TAB text TAB phonemes` of a file."""

    id: str  # its origin and a number
    text: str
    phonemes: str = ""  # the teacher's, sentences joined by a space

    @property
    def origin(self) -> str:
        """The name of its source, or the kind of template that made it."""
        return self.id.rpartition("-")[0]

    def __str__(self) -> str:
        return f"{self.id}\t{self.text}\t{self.phonemes}"


def read(path: Path) -> list[Line]:
    """The lines of a file. Raises ValueError where one has not three fields."""
    fields = (line.split("\t") for line in path.read_text("utf-8").splitlines())
    return [Line(name, text, phonemes) for name, text, phonemes in fields]


def write(path: Path, lines: list[Line]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
