"""A tone is drawn where it sounds, and at its height."""

import numpy as np

from workers.models.qwen3_tts.config import SAMPLE_RATE
from workers.training.judge import write_wav
from workers.training.spectrograms import side_by_side, spectrogram


def tone(hertz, seconds=1.0):
    """Silence for the first half."""
    at = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return (8000 * np.sin(2 * np.pi * hertz * at) * (at > seconds / 2)).astype(np.int16)


def brightest(hertz):
    """(row, column) of the lightest pixel."""
    pixels = np.asarray(spectrogram(tone(hertz))).astype(int).sum(axis=2)
    return np.unravel_index(pixels.argmax(), pixels.shape)


def test_a_tone_is_where_it_sounds():
    low, high = brightest(300), brightest(6000)
    assert low[1] > 45 and high[1] > 45
    assert high[0] < 40 < 100 < low[0]


def test_pairs_stand_side_by_side(tmp_path):
    files = [
        write_wav(tmp_path / f"{name}.wav", tone(440, seconds)) for name, seconds in (("a", 1), ("b", 2), ("c", 1))
    ]
    sheet = side_by_side([(files[0], files[1]), (files[2], files[0])])
    one, two = (spectrogram(tone(440, seconds)).width for seconds in (1, 2))
    assert one + two < sheet.width < one + two + 60
    assert sheet.height > 2 * 128
