"""The songs that are played: their requests, and who comes and leaves when."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_schemas.events import JobRequested

_VERSE = (
    "Hold the line, hold the light",
    "Every road we ran tonight",
    "Turns to silver, turns to sound",
    "Feet that never touch the ground",
)
_CHORUS = ("All night long", "All night long", "Sing it where the stars belong")


def lyrics(verses: int) -> str:
    """About 50 tokens a verse."""
    verse = "\n".join(("[verse]", *_VERSE, "[chorus]", *_CHORUS))
    return "\n".join([verse] * verses)


@dataclass(frozen=True, slots=True)
class Song:
    """One song: the same name, seed, frames and verses make the same bytes."""

    seed: int
    frames: int
    verses: int = 1

    @property
    def name(self) -> str:
        return f"{self.seed}-{self.frames}-{self.verses}"

    def request(self, model: str) -> JobRequested:
        params = {"instructions": "a quick waltz", "max_new_tokens": self.frames, "async_chunk": True}
        return JobRequested(
            model=model, input=lyrics(self.verses), params=params, seed=self.seed, owner="bench", deadline=2**52
        )  # fmt: skip


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
