"""Recordings that people send for a voice: which are taken, and how they are read.

The api refuses with it what a worker could not use, so that both read a recording alike.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import soundfile

_FORMATS = ("WAV", "WAVEX", "FLAC", "MP3", "OGG")
_BLOCK = 1 << 16  # sample frames at a time


class BadRecording(ValueError):
    """The recording cannot be used. `str()` says why, and what to send instead."""


@dataclass(frozen=True, slots=True)
class RecordingLimits:
    """Sizes in bytes, lengths in seconds, rates in Hz; `silence` is the peak, of full scale 1, below which none is
    heard, and `loudest` the one above which the samples are not of that scale."""

    max_bytes: int = 10 << 20
    min_seconds: float = 0.5
    max_seconds: float = 60.0
    min_rate: int = 8_000
    max_rate: int = 192_000
    max_channels: int = 8
    silence: float = 0.001
    loudest: float = 8.0


def read_recording(content: bytes, limits: RecordingLimits | None = None) -> tuple[np.ndarray, int]:
    """The sound of a WAV, FLAC, MP3 or OGG file, however it is named.

    Returns:
        (samples,) float32, the mean of its channels, and their rate in Hz.

    Raises:
        BadRecording: too large, no audio, of another format, too short or long, or silent.
    """
    limits = limits or RecordingLimits()
    if len(content) > limits.max_bytes:
        raise BadRecording(
            f"The recording has {len(content)} bytes: at most {limits.max_bytes} can be taken; send less, or as MP3."
        )
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            _check_format(file, limits)
            pcm, rate = _mono(file, limits), file.samplerate
    except soundfile.LibsndfileError as error:
        why = error.error_string
        raise BadRecording(f"The recording cannot be read ({why}): send WAV, FLAC, MP3 or OGG.") from None
    _check_sound(pcm, rate, limits)
    return pcm, rate


def _check_format(file: soundfile.SoundFile, limits: RecordingLimits) -> None:
    if file.format not in _FORMATS:
        raise BadRecording(f"The recording is {file.format}: send WAV, FLAC, MP3 or OGG.")
    if not limits.min_rate <= file.samplerate <= limits.max_rate:
        raise BadRecording(
            f"The recording has {file.samplerate} samples a second: {limits.min_rate} to {limits.max_rate} will do."
        )
    if file.channels > limits.max_channels:
        raise BadRecording(f"The recording has {file.channels} channels: at most {limits.max_channels} can be taken.")


def _mono(file: soundfile.SoundFile, limits: RecordingLimits) -> np.ndarray:
    """What a file's head says of its length may be wrong: it is read until it ends, or is too long."""
    longest = int(limits.max_seconds * file.samplerate)
    blocks, length = [], 0
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        length += len(block)
        if length > longest:
            raise BadRecording(f"The recording is over {limits.max_seconds:g} s long: send a shorter part of it.")
        blocks.append(block.mean(axis=1))
    return np.concatenate(blocks) if blocks else np.empty(0, np.float32)


def _check_sound(pcm: np.ndarray, rate: int, limits: RecordingLimits) -> None:
    if len(pcm) < limits.min_seconds * rate:
        raise BadRecording(
            f"The recording is {len(pcm) / rate:.2f} s long: send at least {limits.min_seconds:g} s, better 3 to 10."
        )
    peak = float(np.abs(pcm).max())
    if not peak <= limits.loudest:  # nor a NaN
        raise BadRecording(f"The recording's samples reach {peak:g}: scale them to between -1 and 1.")
    if peak < limits.silence:
        raise BadRecording("The recording is silent: send one in which the voice is heard.")
