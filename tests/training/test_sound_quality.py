"""What an ear would notice is noticed."""

import numpy as np
import pytest

from workers.models.qwen3_tts.config import FRAME_SAMPLES, SAMPLE_RATE
from workers.training.sound_quality import quality, seams


@pytest.fixture
def speech():
    """Three seconds of a tone that swells and fades."""
    at = np.arange(36 * FRAME_SAMPLES) / SAMPLE_RATE
    sound = 0.2 * np.sin(2 * np.pi * 220 * at) * np.sin(np.pi * at / at[-1])
    return (sound * 32767).astype(np.int16)


def test_seams_are_where_chunks_meet():
    assert [seam // FRAME_SAMPLES for seam in seams(60)] == [1, 2, 4, 7, 11, 17, 26, 40]
    assert seams(1) == [] and [seam // FRAME_SAMPLES for seam in seams(20, first_chunk=10)] == [10]


def test_clean_speech(speech):
    clean = quality(speech)
    assert clean.seam <= 1.01
    assert clean.start < 0.05 and clean.end < 0.05
    assert -22 < clean.loudness < -17


def test_a_click_at_a_seam(speech):
    clicked = speech.copy()
    clicked[7 * FRAME_SAMPLES :] += 1500
    assert quality(clicked).seam > 2
    elsewhere = speech.copy()
    elsewhere[8 * FRAME_SAMPLES :] += 1500
    assert quality(elsewhere).seam < 1


def test_a_clipped_word(speech):
    assert quality(speech[15 * FRAME_SAMPLES :]).start > 0.5
    assert quality(speech[: -15 * FRAME_SAMPLES]).end > 0.5


def test_level_and_what_is_too_short_to_have_one(speech):
    assert quality(speech // 4).loudness == pytest.approx(quality(speech).loudness - 12, abs=0.2)
    assert quality(speech[: 3 * FRAME_SAMPLES]).loudness is None
