"""The teacher's speech: what a voice is trained on, spoken by `hibari-tts` on all cores.

Hibari's network gives a spectrum for a string of phonemes; its own signal processing makes sound of it. Beside the
sound it tells how long each phoneme lasts, which is the alignment that the talker learns to follow. The silence around
a sentence is cut short: a listener waits for the first word.
"""

from __future__ import annotations

import argparse
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from workers.models.qwen3_tts.config import FRAME_SAMPLES, SAMPLE_RATE
from workers.training.lines import Line, read

GAIN = 2.0  # the teacher speaks at -26 LUFS
_WINDOW = SAMPLE_RATE // 100
_SILENT = 10 ** (-60 / 20)  # RMS of a window; between words the teacher is at -80 dB and below
_BEFORE = 10  # windows kept before the first sound, and after the last one
_AFTER = 20
_DURATIONS = "/Clip_output_0"  # the node of the teacher's graph that holds them
_DURATION = SAMPLE_RATE // 40  # samples of a unit


@dataclass(frozen=True, slots=True)
class Spoken:
    """A line as spoken.

    pcm: (samples,) int16, a whole number of frames. ends: for each character of the line's phonemes, the sample at
    which it ends.
    """

    line: Line
    pcm: np.ndarray
    ends: np.ndarray


class Teacher:
    """One process's: a core is kept busy, and a second one gains little."""

    def __init__(self) -> None:
        import onnx
        import onnxruntime
        from hibari import Hibari
        from hibari.voices import voice_path

        graph = onnx.load(voice_path("heart"))
        graph.graph.output.append(onnx.helper.make_tensor_value_info(_DURATIONS, onnx.TensorProto.FLOAT, None))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._ids = Hibari().vocab

    def speak(self, line: Line) -> Spoken:
        """The line's sentences one after another, each with its silences cut short."""
        pieces, ends, start = [], [], 0
        for sentence in line.sentences:
            sound, sentence_ends = self._sentence(sentence, zlib.crc32(line.id.encode()))
            pieces.append(sound)
            ends.append(start + sentence_ends)
            start += len(sound)
            ends.append(np.array([start]))  # the space between two sentences
        sound = np.concatenate(pieces)
        sound = np.pad(sound, (0, -len(sound) % FRAME_SAMPLES))
        pcm = (np.clip(GAIN * sound, -1, 1) * 32767).astype(np.int16)
        return Spoken(line, pcm, np.concatenate(ends[:-1]))

    def _sentence(self, phonemes: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
        from hibari import dsp

        known = [self._ids.get(phoneme) for phoneme in phonemes]
        ids = [0, *(id_ for id_ in known if id_ is not None), 0]
        feeds = {"ids": np.array([ids], np.int64), "speed": np.ones(1, np.float32)}
        *spectrum, durations = self._session.run(None, feeds)
        sound = dsp.synth(*(part[0] for part in spectrum), np.random.default_rng(seed))
        first, last = _sounding(sound)
        of_known = iter(np.cumsum(durations)[1:-1] * _DURATION)
        ends, end = [], durations[0] * _DURATION
        for id_ in known:
            end = end if id_ is None else next(of_known)
            ends.append(end)
        return sound[first:last], np.clip(np.array(ends) - first, 0, last - first).astype(np.int64)


def _sounding(sound: np.ndarray) -> tuple[int, int]:
    """Where to cut: the first and the last sample to keep."""
    windows = sound[: len(sound) // _WINDOW * _WINDOW].reshape(-1, _WINDOW)
    loud = np.flatnonzero(np.sqrt((windows**2).mean(axis=1)) > _SILENT)
    if not len(loud):
        return 0, len(sound)
    return max(0, loud[0] - _BEFORE) * _WINDOW, min(len(windows), loud[-1] + 1 + _AFTER) * _WINDOW


def speak(lines: list[Line], processes: int | None = None) -> Iterator[Spoken]:
    """All lines as spoken, in any order, by as many processes as there are cores."""
    with get_context("spawn").Pool(processes or os.cpu_count(), initializer=_start) as pool:
        yield from pool.imap_unordered(_speak, lines, chunksize=16)


_teacher: Teacher


def _start() -> None:
    global _teacher
    _teacher = Teacher()


def _speak(line: Line) -> Spoken:
    return _teacher.speak(line)


def main() -> None:
    from workers.training.corpus import SpeechWriter

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lines", type=Path, help="what workers.training.texts wrote")
    parser.add_argument("out", type=Path, help="folder for the speech")
    parser.add_argument("--count", type=int, help="of the first lines; all without")
    parser.add_argument("--hours", type=float, help="stop after so much speech")
    parser.add_argument("--processes", type=int)
    args = parser.parse_args()
    with SpeechWriter(args.out) as speech:
        for spoken in speak(read(args.lines)[: args.count], args.processes):
            speech.add(spoken)
            if args.hours and speech.seconds >= 3600 * args.hours:
                break
    print(f"{speech.seconds / 3600:.2f} hours of speech in {args.out}")


if __name__ == "__main__":
    main()
