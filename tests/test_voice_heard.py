"""The voice that comes with Qwen3-TTS, as people hear it: over HTTP, by an ear that nobody here trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import workers.training
from compose.verification import verified
from producer import Songline
from tests.compose.conftest import serving
from workers.training.judge import Recogniser, write_wav
from workers.training.sound_quality import quality

SENTENCES = 4  # plain ones that are held out of the training
MOST_MISHEARD = 0.15  # of the words; of the teacher's own, Whisper tiny mishears one in a hundred
LOUDNESS = (-26.0, -16.0)  # LUFS
CLICK = 1.5  # a step between samples at a seam, beside the largest elsewhere


@pytest.fixture(scope="module")
def served():
    with serving("up") as (_, url), Songline(url) as songline:
        yield songline


@pytest.fixture(scope="module")
def spoken(served):
    """(sentence, how it ended, (samples,) int16) of each."""
    lines = Path(workers.training.__file__).with_name("held_out.txt").read_text(encoding="utf-8").splitlines()
    plain = [text for kind, text in (line.split("\t") for line in lines) if kind == "plain"][:SENTENCES]
    jobs = [(text, served.say(text, seed=1)) for text in plain]
    heard = []
    for text, job in jobs:
        pcm = np.frombuffer(b"".join(chunk.pcm for chunk in job), "<i2")
        heard.append((text, served.job(job.id).state["reason"], pcm))
    return heard


def test_it_is_understood(spoken, tmp_path):
    files = [(write_wav(tmp_path / f"{number}.wav", pcm), text) for number, (text, _, pcm) in enumerate(spoken)]
    rate, each = Recogniser().rate(files)
    assert rate <= MOST_MISHEARD, "\n".join(f"{one.said} — heard: {one.heard}" for one in each)


def test_it_comes_to_an_end_by_itself(spoken):
    assert [reason for _, reason, _ in spoken] == ["stop"] * SENTENCES


def test_it_is_as_loud_as_speech_is(spoken):
    low, high = LOUDNESS
    told = [quality(pcm).loudness for _, _, pcm in spoken]
    assert all(loudness is not None and low <= loudness <= high for loudness in told), told


def test_nothing_clicks_where_chunks_meet(spoken):
    told = [quality(pcm).seam for _, _, pcm in spoken]
    assert all(seam < CLICK for seam in told), told


def test_what_it_said_is_verified(served):
    """What the checkpoint alone puts into a request, such as how chunks grow, is not sent back."""
    job = served.say("Hello there.", seed=3)
    pcm = b"".join(chunk.pcm for chunk in job)
    verdict = verified(served, job.id)
    assert pcm and verdict.same and verdict.chunks > 2
