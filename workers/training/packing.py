"""Rows to train the talker on: utterances as they will be prompted, several to a row.

Some are several lines in one, as a longer text is: what the model hears of itself then reaches back a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from workers.models.qwen3_tts.prompt import NOTHING, Prompt
from workers.training.corpus import Utterance
from workers.training.talker import END, NONE, Rows

_LINES = (1, 1, 1, 2, 3)  # of an utterance: how often one, two, three

# (phonemes) -> the prompt, which is another one now and then, and the position of its first phoneme.
MakePrompt = Callable[[str], tuple[Prompt, int]]

_NO_UTTERANCE = -1


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One utterance as positions, (L,) int32 each; see Rows, but that its own positions are counted."""

    text: np.ndarray
    codec: np.ndarray
    frame: np.ndarray
    next: np.ndarray
    spoken: np.ndarray

    def __len__(self) -> int:
        return len(self.text)


def pack(
    utterances: list[Utterance], make_prompt: MakePrompt, pad: int, length: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """All utterances, in rows.

    Args:
        make_prompt: of a string of phonemes.
        pad: id of the text's padding token.
        length: positions of a row; what is longer is left out.

    Returns:
        The fields of Rows, (rows, length) int32 each.
    """
    rows: list[list[_Sequence]] = []
    open_rows: list[tuple[int, list[_Sequence]]] = []
    for lines in _joined(utterances, rng):
        sequence = _sequence(lines, make_prompt, pad)
        if len(sequence) > length:
            continue
        fitting = [index for index, (used, _) in enumerate(open_rows) if used + len(sequence) <= length]
        if fitting:
            used, row = open_rows.pop(fitting[0])
        else:
            used, row = 0, []
            rows.append(row)
        row.append(sequence)
        open_rows.append((used + len(sequence), row))
        if len(open_rows) > 16:  # the fullest one stays as it is
            open_rows.remove(max(open_rows, key=lambda entry: entry[0]))
    return _laid_out(rows, pad, length)


def _joined(utterances: list[Utterance], rng: np.random.Generator) -> Iterator[list[Utterance]]:
    order = rng.permutation(len(utterances))
    start = 0
    while start < len(order):
        count = int(rng.choice(_LINES))
        yield [utterances[index] for index in order[start : start + count]]
        start += count


def _sequence(lines: list[Utterance], make_prompt: MakePrompt, pad: int) -> _Sequence:
    prompt, first = make_prompt(" ".join(line.phonemes for line in lines))
    frames = np.concatenate([np.arange(line.start, line.start + line.frames) for line in lines]).astype(np.int32)
    text = np.array(prompt.text, np.int32)
    nothing = np.full(len(text), NONE, np.int32)
    with_frames = np.full(len(text) + len(frames), NONE, np.int32)
    following = with_frames.copy()
    following[len(text) - 1 : -1] = frames
    following[-1] = END
    spoken = with_frames.copy()
    spoken[len(text) - 1 : -1] = first + _spoken(lines)
    codec = np.where(np.array(prompt.codec) == NOTHING, NONE, prompt.codec).astype(np.int32)
    return _Sequence(
        text=np.concatenate((text, np.full(len(frames), pad, np.int32))),
        codec=np.concatenate((codec, np.full(len(frames), NONE, np.int32))),
        frame=np.concatenate((nothing, frames)),
        next=following,
        spoken=spoken,
    )


def _spoken(lines: list[Utterance]) -> np.ndarray:
    """(frames,): which phoneme of the lines, joined by spaces, is heard in the middle of each frame."""
    spoken, before = [], 0
    for line in lines:
        spoken.append(before + line.spoken(np.arange(line.frames) + 0.5))
        before += len(line.phonemes) + 1
    return np.concatenate(spoken)


def _laid_out(rows: list[list[_Sequence]], pad: int, length: int) -> dict[str, np.ndarray]:
    empty = {"text": pad, "utterance": _NO_UTTERANCE, "position": 0}
    fields = {name: np.full((len(rows), length), empty.get(name, NONE), np.int32) for name in Rows._fields}
    for number, row in enumerate(rows):
        start = 0
        for index, sequence in enumerate(row):
            end = start + len(sequence)
            for name in ("text", "codec", "frame", "next"):
                fields[name][number, start:end] = getattr(sequence, name)
            fields["spoken"][number, start:end] = np.where(sequence.spoken == NONE, NONE, start + sequence.spoken)
            fields["utterance"][number, start:end] = index
            fields["position"][number, start:end] = np.arange(end - start)
            start = end
    return fields
