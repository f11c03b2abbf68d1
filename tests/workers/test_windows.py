"""Windows that ramp up: their arithmetic against a count by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest

from workers.talker.windows import RampPlan

PLANS = [RampPlan((1, 2, 4, 8, 16), 25), RampPlan((1,), 25), RampPlan((25,), 25), RampPlan((10, 3), 4)]


@pytest.mark.parametrize("plan", PLANS)
def test_windows_tile_the_frames_in_order(plan):
    for frames in range(1, 140):
        bounds = [plan.bounds(index, frames) for index in range(plan.count(frames))]
        assert bounds[0][0] == 0
        assert bounds[-1][1] == frames
        assert all(end == start for (_, end), (start, _) in pairwise(bounds))
        assert all(end > start for start, end in bounds)
        whole = [end - start for start, end in bounds[:-1]]
        assert whole == [plan.frames_of(index) for index in range(len(whole))]
        assert 0 < bounds[-1][1] - bounds[-1][0] <= plan.frames_of(len(whole))
        assert [plan.sent_with(index) for index in range(len(bounds))] == [start for start, _ in bounds]


@pytest.mark.parametrize("plan", PLANS)
def test_a_window_is_released_once_it_is_known_not_to_be_the_last(plan):
    for frames in range(140):
        released = plan.whole(frames)
        assert all(plan.count(total) > released for total in range(max(1, frames), frames + 60))
        assert plan.sent_with(released) < max(1, frames)
        assert frames == 0 or plan.sent_with(released + 1) >= frames


def test_a_job_without_frames_has_no_windows():
    assert RampPlan((1, 2), 25).count(0) == 0
