"""The teacher's speech, as it is cut and laid down; and that it is understood."""

import numpy as np
import pytest

from workers.models.qwen3_tts.config import FRAME_SAMPLES, SAMPLE_RATE
from workers.models.qwen3_tts.phonemes import sentences
from workers.training.corpus import Speech, SpeechWriter
from workers.training.judge import Recogniser, write_wav
from workers.training.lines import Line
from workers.training.teacher import Teacher, speak

TEXTS = ("The river wrote a letter to the sea.", "Is it five dollars? No, it is ten.", "Fish!")
LINES = [Line(f"test-{number}", text, tuple(sentences(text))) for number, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def spoken():
    return [Teacher().speak(line) for line in LINES]


def test_speech_is_a_whole_number_of_frames_with_little_silence_around(spoken):
    for one in spoken:
        assert len(one.pcm) % FRAME_SAMPLES == 0
        loud = np.flatnonzero(np.abs(one.pcm.astype(int)) > 300)
        assert 0.02 < loud[0] / SAMPLE_RATE < 0.2
        assert 0.1 < (len(one.pcm) - loud[-1]) / SAMPLE_RATE < 0.45


def test_each_phoneme_ends_where_the_next_begins(spoken):
    for one in spoken:
        assert len(one.ends) == len(one.line.phonemes)
        assert (np.diff(one.ends) >= 0).all()
        assert one.ends[0] >= 0 and one.ends[-1] <= len(one.pcm)


def test_sentences_follow_each_other_as_they_are_spoken_alone():
    alone = [Teacher().speak(Line("test-1", "", (sentence,))) for sentence in LINES[1].sentences]
    together = Teacher().speak(LINES[1])
    first = alone[0].pcm
    quiet = len(first) - FRAME_SAMPLES  # what fills the last frame is the next sentence's beginning there
    assert np.array_equal(together.pcm[:quiet], first[:quiet])
    assert len(together.pcm) >= sum(len(one.pcm) for one in alone) - 2 * FRAME_SAMPLES


def test_a_line_is_spoken_alike_by_any_process(spoken):
    by_id = {one.line.id: one for one in speak(LINES, processes=2)}
    for one in spoken:
        assert np.array_equal(by_id[one.line.id].pcm, one.pcm)


def test_what_is_written_is_read_even_while_more_is_written(spoken, tmp_path):
    with SpeechWriter(tmp_path) as writer:
        for one in spoken:
            writer.add(one)
        seconds = writer.seconds
    speech = Speech(tmp_path)
    assert [utterance.id for utterance in speech.utterances] == [line.id for line in LINES]
    for utterance, one in zip(speech.utterances, spoken, strict=True):
        assert np.array_equal(speech.of(utterance), one.pcm)
        np.testing.assert_allclose(utterance.ends * FRAME_SAMPLES, one.ends, atol=0.006 * FRAME_SAMPLES)
    assert seconds == sum(len(one.pcm) for one in spoken) / SAMPLE_RATE
    with (tmp_path / "speech.pcm").open("r+b") as file:  # the last line's sound is not all there yet
        file.truncate(len(speech.frames) * FRAME_SAMPLES * 2 - 10)
    with (tmp_path / "lines.jsonl").open("a") as file:
        file.write('{"id": "test-')
    assert [utterance.id for utterance in Speech(tmp_path).utterances] == [line.id for line in LINES[:-1]]


def test_it_is_understood(spoken, tmp_path):
    sounds = [(write_wav(tmp_path / f"{one.line.id}.wav", one.pcm), one.line.text) for one in spoken[:2]]
    rate, heard = Recogniser().rate(sounds)
    assert rate < 0.3, heard  # a word or two of fifteen: so short a text tells Whisper little
    silence = write_wav(tmp_path / "silence.wav", np.zeros(2 * SAMPLE_RATE, np.int16))
    assert Recogniser().rate([(silence, TEXTS[0])])[0] >= 0.9
