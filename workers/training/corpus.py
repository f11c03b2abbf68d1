"""A folder of speech: what the teacher made of the lines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workers.models.qwen3_tts.config import FRAME_SAMPLES, SAMPLE_RATE

if TYPE_CHECKING:
    from workers.training.teacher import Spoken


class SpeechWriter:
    """Writes a folder of speech: all sound in one file, where each line's lies in another."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._pcm = (folder / "speech.pcm").open("wb")
        self._lines = (folder / "lines.jsonl").open("w", encoding="utf-8")
        self._samples = 0

    @property
    def seconds(self) -> float:
        return self._samples / SAMPLE_RATE

    def add(self, spoken: Spoken) -> None:
        spoken.pcm.tofile(self._pcm)
        entry = {
            "id": spoken.line.id,
            "phonemes": spoken.line.phonemes,
            "start": self._samples // FRAME_SAMPLES,
            "frames": len(spoken.pcm) // FRAME_SAMPLES,
            "ends": np.round(spoken.ends / FRAME_SAMPLES, 2).tolist(),
        }
        self._lines.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self._samples += len(spoken.pcm)

    def __enter__(self) -> SpeechWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._pcm.close()
        self._lines.close()


@dataclass(frozen=True, slots=True)
class Utterance:
    """Where a line's speech lies, in frames; ends: of each phoneme, in frames from the utterance's start."""

    id: str
    phonemes: str
    start: int
    frames: int
    ends: np.ndarray

    def spoken(self, moments: np.ndarray) -> np.ndarray:
        """Which of its phonemes is heard at each moment, in frames from its start."""
        return np.minimum(np.searchsorted(self.ends, moments, side="right"), len(self.phonemes) - 1)


class Speech:
    """A folder of speech, read as it is needed. One that is still being written has what is there by now."""

    def __init__(self, folder: Path) -> None:
        sound = folder / "speech.pcm"
        frames = sound.stat().st_size // (FRAME_SAMPLES * np.dtype(np.int16).itemsize)
        lines = read_utterances(folder / "lines.jsonl")
        self.utterances = [utterance for utterance in lines if utterance.start + utterance.frames <= frames]
        last = self.utterances[-1]
        self.frames = np.memmap(sound, np.int16, "r", shape=(last.start + last.frames, FRAME_SAMPLES))

    def of(self, utterance: Utterance) -> np.ndarray:
        """(samples,) int16."""
        return self.frames[utterance.start : utterance.start + utterance.frames].reshape(-1)

    def phonemes(self) -> tuple[np.ndarray, int]:
        """What is heard early and late in each frame, (frames, 2) int16, as numbers; and how many of them there are."""
        known = sorted(set().union(*(utterance.phonemes for utterance in self.utterances)))
        numbers = {phoneme: number for number, phoneme in enumerate(known)}
        heard = np.zeros((len(self.frames), 2), np.int16)
        for utterance in self.utterances:
            of_utterance = np.array([numbers[phoneme] for phoneme in utterance.phonemes], np.int16)
            moments = np.arange(utterance.frames)[:, None] + (0.25, 0.75)
            heard[utterance.start : utterance.start + utterance.frames] = of_utterance[utterance.spoken(moments)]
        return heard, len(numbers)


def read_utterances(path: Path) -> list[Utterance]:
    """What `SpeechWriter` wrote of each line; a last line that is still being written is left out."""
    utterances = []
    for row in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if row.endswith("\n"):
            entry = json.loads(row)
            entry["ends"] = np.array(entry["ends"], np.float32)
            utterances.append(Utterance(**entry))
    return utterances
