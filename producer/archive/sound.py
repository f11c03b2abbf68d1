"""Sound as files that lose nothing of it."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import soundfile

from producer.archive.settings import FLAC, WAV
from producer.wav import wav_header


def _wav(pcm: bytes, rate: int, channels: int) -> bytes:
    return wav_header(rate, channels, len(pcm)) + pcm


def _flac(pcm: bytes, rate: int, channels: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.frombuffer(pcm, "<i2").reshape(-1, channels), rate, format="FLAC", subtype="PCM_16")
    return file.getvalue()


# By the suffix of the file: interleaved 16-bit PCM, Hz and channels in, the file's bytes out.
ENCODERS: dict[str, Callable[[bytes, int, int], bytes]] = {WAV: _wav, FLAC: _flac}
