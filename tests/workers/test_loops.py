"""The guard against models that never end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from broker_schemas.job import Status, fold
from tests.stand_ins import SPEECH, InstantAcoustic, InstantRunner, acoustic, running, talker
from tests.test_pipeline import listen, submit
from workers.models.family import load_family
from workers.talker.loops import LoopGuard

GUARD = LoopGuard(frames=100, period=10, every=5)


def frames(first: list[int]) -> list[np.ndarray]:
    return [np.array([code, 1, 2], np.int16) for code in first]


@pytest.mark.parametrize("period", [1, 2, 7, 10])
def test_a_loop_is_found_whatever_came_before(period):
    noise = np.random.default_rng(0).integers(0, 2048, 95).tolist()
    loop = np.random.default_rng(1).integers(0, 2048, period).tolist() * 100
    ends = [n for n in range(1, 300) if GUARD.caught(frames((noise + loop)[:n]))]
    assert ends[0] == 195


def test_a_loop_with_a_few_other_frames_is_one():
    first = [7] * 100
    first[40] = first[77] = 8
    assert GUARD.caught(frames(first))


def test_speech_is_no_loop():
    random = np.random.default_rng(2)
    pause = random.integers(0, 2048, 100)
    pause[:90] = 5
    for first in (random.integers(0, 2048, 100), np.tile(random.integers(0, 2048, 11), 10)[:100], pause):
        assert not GUARD.caught(frames(first.tolist()))


def test_it_looks_now_and_then_only():
    assert not GUARD.caught(frames([7] * 101))
    assert not GUARD.caught(frames([7] * 95))


def test_songs_may_repeat_and_speech_may_not():
    assert load_family("minimax_music3").loops is None
    assert load_family("qwen3_tts").loops is not None


class Stuck(InstantRunner):
    """Draws one and the same first code from the fortieth draw on."""

    def step(self):
        for history in self._jobs.values():
            history.codes[40:] = [np.concatenate(([9], codes[1:])).astype(np.int16) for codes in history.codes[40:]]
        return super().step()


async def test_a_job_in_a_loop_ends_by_length_and_is_counted(producer, broker):
    stage = acoustic(broker, family=SPEECH, model=InstantAcoustic(width=0, keeps_state=False, own=None, channels=1))
    with running(talker(broker, family=replace(SPEECH, loops=GUARD), runner=Stuck(width=0)), stage):
        job = await submit(producer, frames=5000)
        state = fold((await listen(producer, job))[0])
    assert (state.status, state.reason, state.looped) == (Status.COMPLETED, "length", True)
    assert 135 <= state.frames <= 160
