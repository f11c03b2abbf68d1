"""What an ear would notice besides the words: level, clicks where chunks meet, clipped beginnings and ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workers.models.qwen3_tts.config import FIRST_CHUNK_FRAMES, FRAME_SAMPLES, GENTLE, SAMPLE_RATE, plan

_AROUND = 2  # samples on each side of a seam that belong to it
_EDGE = SAMPLE_RATE // 100
_SHORTEST = 0.4  # seconds, below which loudness has no meaning


@dataclass(frozen=True, slots=True)
class Quality:
    """Of one utterance.

    loudness: LUFS, integrated (ITU-R BS.1770); None where it is too short. seam: the largest step between neighbouring
    samples where chunks meet, as a share of the largest one elsewhere; 0 where there is one chunk. start, end: RMS of
    the first and the last 10 ms, as a share of the utterance's: a word that is cut off is loud there.
    """

    loudness: float | None
    seam: float
    start: float
    end: float


def quality(pcm: np.ndarray, first_chunk: int = FIRST_CHUNK_FRAMES) -> Quality:
    """Of (samples,) int16, cut into chunks as the voice's are for a request with this first chunk."""
    import pyloudnorm

    sound = pcm.astype(np.float64) / 32768
    steps = np.abs(np.diff(sound))
    at_seam = np.zeros(len(steps), bool)
    for seam in seams(len(pcm) // FRAME_SAMPLES, first_chunk):
        at_seam[seam - 1 - _AROUND : seam + _AROUND] = True
    elsewhere = steps[~at_seam].max(initial=1e-9)
    whole = max(_rms(sound), 1e-9)
    loud = len(pcm) >= _SHORTEST * SAMPLE_RATE
    return Quality(
        loudness=float(pyloudnorm.Meter(SAMPLE_RATE).integrated_loudness(sound)) if loud else None,
        seam=float(steps[at_seam].max(initial=0.0) / elsewhere),
        start=_rms(sound[:_EDGE]) / whole,
        end=_rms(sound[-_EDGE:]) / whole,
    )


def seams(frames: int, first_chunk: int = FIRST_CHUNK_FRAMES) -> list[int]:
    """The samples at which an utterance's second, third, ... chunks begin."""
    cuts = plan(first_chunk, GENTLE)
    return [FRAME_SAMPLES * cuts.bounds(window, frames)[0] for window in range(1, cuts.count(frames))]


def _rms(sound: np.ndarray) -> float:
    return float(np.sqrt((sound**2).mean()))
