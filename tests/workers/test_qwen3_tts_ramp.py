"""How chunks grow: a checkpoint says, and a request is cut so whoever serves it."""

from __future__ import annotations

import shutil

import pytest

from broker_schemas.events import JobRequested
from tests.tiny_checkpoint import restate, tiny_checkpoint
from workers.models.family import load_family
from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.config import GENTLE, STEEP, ConfigError, plan
from workers.models.qwen3_tts.contract import _CHUNK_ENVELOPES

FRAME_S = 1 / config.FRAME_RATE
FAMILY = load_family("qwen3_tts")
FRAMES = 200


@pytest.fixture
def stating(tmp_path):
    """A checkpoint whose config.json states this ramp."""

    def state(ramp):
        folder = shutil.copytree(tiny_checkpoint("qwen3_tts"), tmp_path / "checkpoint", dirs_exist_ok=True)
        restate(folder / "config.json", chunk_ramp=ramp)
        return folder

    return state


def lengths(cuts) -> list[int]:
    bounds = [cuts.bounds(window, FRAMES) for window in range(cuts.count(FRAMES))]
    return [end - start for start, end in bounds]


def cuts_of(folder, **asked):
    order = FAMILY.contract(folder, 512).accept({"input": "Hello.", **asked})
    return FAMILY.plan(JobRequested(model="qwen3_tts", input="", params=order.params, seed=1, owner="o", deadline=0))


def test_a_checkpoint_may_ask_for_a_gentle_ramp(stating):
    assert lengths(cuts_of(stating(GENTLE)))[:12] == [1, 1, 2, 3, 4, 6, 9, 14, 21, 25, 25, 25]
    assert lengths(cuts_of(stating(GENTLE), first_chunk_frames=10))[:6] == [10, 10, 11, 16, 24, 25]


def test_without_its_word_chunks_double(stating):
    assert cuts_of(tiny_checkpoint("qwen3_tts")) == cuts_of(stating(STEEP)) == plan()
    assert lengths(plan())[:8] == [1, 2, 4, 8, 16, 25, 25, 25]


def test_a_job_of_before_is_cut_as_it_was():
    """Its request says nothing of a ramp."""
    params = {"first_chunk_frames": 1}
    old = JobRequested(model="qwen3_tts", input="x", params=params, seed=1, owner="o", deadline=0)
    assert FAMILY.plan(old) == plan(1, STEEP)


def test_each_chunk_of_a_gentle_ramp_has_its_room(stating):
    """There are more of them, and each is an event and an entry."""
    asked = {"input": "Hello.", "max_new_tokens": FRAMES}
    steep, gentle = (FAMILY.contract(stating(ramp), 512).accept(asked).reserve_bytes for ramp in (STEEP, GENTLE))
    more = plan(1, GENTLE).count(FRAMES) - plan(1, STEEP).count(FRAMES)
    assert more > 0 and gentle - steep >= more * _CHUNK_ENVELOPES


@pytest.mark.parametrize("ramp", ["slow", 2, None])
def test_a_ramp_that_is_not_known_is_refused(stating, ramp):
    with pytest.raises(ConfigError, match=r"chunk_ramp is .*, neither 'steep' nor 'gentle'"):
        config.load_config(stating(ramp))


@pytest.mark.parametrize("first_chunk", range(1, config.HOP + 1))
@pytest.mark.parametrize("ramp", [STEEP, GENTLE])
def test_all_frames_are_cut_once_and_no_chunk_is_shorter_than_the_one_before(first_chunk, ramp):
    cut = lengths(plan(first_chunk, ramp))
    assert sum(cut) == FRAMES and cut[0] == first_chunk
    assert cut[:-1] == sorted(cut[:-1]) and max(cut) == config.HOP


@pytest.mark.parametrize(("ramp", "frame_ms"), [(STEEP, 39), (GENTLE, 53)])
def test_who_hears_a_talker_that_is_fast_enough_never_waits(ramp, frame_ms):
    """And a millisecond more is too much."""
    assert waits(plan(1, ramp), frame_ms / 1000) == 0
    assert waits(plan(1, ramp), (frame_ms + 1.1) / 1000) > 0


def waits(cuts, frame_s: float) -> float:
    """Seconds of silence that a listener hears of a talker that needs so long a frame: a chunk is sent a frame late."""
    heard_to = silence = 0.0
    for window in range(cuts.count(FRAMES) - 1):  # the last one need not wait for the frame after it
        start, end = cuts.bounds(window, FRAMES)
        ready = (end + 1) * frame_s
        silence += max(0.0, ready - heard_to) if window else 0.0
        heard_to = max(heard_to, ready) + (end - start) * FRAME_S
    return silence
