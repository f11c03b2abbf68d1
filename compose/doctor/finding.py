"""One thing that the doctor looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"  # serving works, and there is something to know
    WRONG = "wrong"  # serving fails, or may lose what it should keep


@dataclass(frozen=True, slots=True)
class Finding:
    """`said` is what was found; `advice` what to do about it."""

    subject: str
    level: Level
    said: str
    advice: str = ""


def ok(subject: str, said: str) -> Finding:
    return Finding(subject, Level.OK, said)


def note(subject: str, said: str, advice: str = "") -> Finding:
    return Finding(subject, Level.NOTE, said, advice)


def wrong(subject: str, said: str, advice: str) -> Finding:
    return Finding(subject, Level.WRONG, said, advice)
