"""The songs that are played: their requests, and who comes and leaves when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from broker_schemas.contract import Contract
from broker_schemas.events import JobRequested

_VERSE = (
    "Hold the line, hold the light",
    "Every road we ran tonight",
    "Turns to silver, turns to sound",
    "Feet that never touch the ground",
)
_CHORUS = ("All night long", "All night long", "Sing it where the stars belong")
_SPOKEN = "The line was held, the light was low, and every road that we had run turned to silver by the morning."


def body(family: str, frames: int, verses: int) -> dict[str, Any]:
    """A request for so many frames, of a text in so many parts: about 50 tokens each of a song, 25 of a speech."""
    wanted = {"max_new_tokens": frames, "async_chunk": True}
    if family == "minimax_music3":
        verse = "\n".join(("[verse]", *_VERSE, "[chorus]", *_CHORUS))
        return {"input": "\n".join([verse] * verses), "instructions": "a quick waltz", **wanted}
    return {"input": " ".join([_SPOKEN] * verses), "voice": "ryan", **wanted}


@dataclass(frozen=True, slots=True)
class Song:
    """One song: the same name, seed, frames and verses make the same bytes."""

    seed: int
    frames: int
    verses: int = 1

    @property
    def name(self) -> str:
        return f"{self.seed}-{self.frames}-{self.verses}"

    def request(self, family: str, contract: Contract) -> JobRequested:
        """As the api would write it."""
        order = contract.accept(body(family, self.frames, self.verses))
        return JobRequested(
            model=family, input=order.input, params=order.params, seed=self.seed, owner="bench", deadline=2**52
        )


@dataclass(frozen=True, slots=True)
class Visit:
    """A song's stay in the runner.

    `arrives` and `leaves` are a step and a frame (None: it stays to its end). `resumed_at`: its first so many draws are
    given to it, as after a takeover, and the conditioning of its first `sent` frames is out already.
    """

    song: Song
    arrives: int = 0
    leaves: int | None = None
    resumed_at: int = 0
    sent: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """Songs that are in the runner together, in the order in which they arrive.

    `memory`: the part that they have of the key-value blocks which all of them would take together; None: all there is.
    """

    name: str
    visits: tuple[Visit, ...] = field(default_factory=tuple)
    memory: float | None = None

    @staticmethod
    def together(name: str, songs: list[Song], *, every: int = 0) -> Scenario:
        """The songs, one arriving every so many steps; 0: all at once."""
        return Scenario(name, tuple(Visit(song, arrives=number * every) for number, song in enumerate(songs)))

    @staticmethod
    def alone(song: Song) -> Scenario:
        return Scenario(f"alone {song.name}", (Visit(song),))


def pool(songs: int, shortest: int, longest: int) -> list[Song]:
    """Songs of lengths and prompts that differ, so that they come and go at different steps."""
    span = longest - shortest + 1
    return [Song(seed, shortest + seed * 37 % span, verses=1 + seed % 3) for seed in range(songs)]
