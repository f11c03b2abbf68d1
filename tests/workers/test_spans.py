"""What of a song goes into its log, and when: rules 1 and 2 at the talker's end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from broker_schemas.codec import unpack
from broker_schemas.events import CodesLogged, Event, JobAdmitted, SpanTerminal, SpanWindow
from broker_schemas.job import JobState, fold, logged_codes
from tests.stand_ins import PLAN, request
from workers.talker.frames import FrameHistory
from workers.talker.spans import PART_BYTES, Cut, SpanCutter
from workers.talker.windows import WindowPlan

LENGTHS = [1, 2, 99, 100, 101, 102, 199, 200, 201, 202, 300, 301, 302, 400, 401, 799, 1000]


def sing(frames: int, *, async_chunk: bool, log: list[Event] = (), width: int = 3, stops: bool = False) -> list[Cut]:
    """The cuts of a song's rest, after the events that are in its log."""
    state = fold(log) if log else JobState()
    sent = SpanCutter.sent(state, lead=1, async_chunk=async_chunk)
    budget = 9000 if stops else frames
    history = FrameHistory("j", request(), budget, lead=1, forced=logged_codes(log), sent=sent)
    cutter = SpanCutter(PLAN, state, lead=1, async_chunk=async_chunk)
    cuts = []
    for draw in range(frames + 1):
        frame = np.full(width, draw - 1, np.float32)
        history.add(np.full(8, draw, np.int16), frame if history.wants_conditioning else None)
        cuts += cutter.cut(history)
    if stops:
        history.stop()
        cuts += cutter.cut(history)
    return cuts


def logged(cuts: list[Cut], *, first_seq: int = 1) -> list[Event]:
    payloads = (
        [JobAdmitted(role="talker", worker="w", attempt=1, rows=2, profile="p", token="t")] if first_seq == 1 else []
    )
    payloads += [cut.payload for cut in cuts]
    return [Event(p.type, "j", seq, 0, "w", p.data(), p) for seq, p in enumerate(payloads, first_seq)]


def sent_frames(cuts: list[Cut]) -> list[int]:
    parts = [unpack(raw) for cut in cuts for _, raw in cut.conditioning]
    assert all(part["start"] == part["x"].numpy()[0, 0] for part in parts)
    return [int(row[0]) for part in parts for row in part["x"].numpy()]


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("async_chunk", [True, False])
@pytest.mark.parametrize("frames", LENGTHS)
def test_every_frame_and_every_code_is_sent_once_and_in_order(frames, async_chunk, stops):
    cuts = sing(frames, async_chunk=async_chunk, stops=stops)
    assert sent_frames(cuts) == list(range(frames))
    state = fold(logged(cuts))
    assert (state.frames, state.terminal, state.reason) == (frames, True, "stop" if stops else "length")
    assert logged_codes(logged(cuts))[:, 0].tolist() == list(range(frames + 1))
    ids = [entry for cut in cuts for entry, _ in cut.conditioning]
    order = [tuple(map(int, entry.split("-"))) for entry in ids]
    assert order == sorted(set(order))


@pytest.mark.parametrize("frames", LENGTHS)
def test_windows_are_released_one_frame_late_and_the_rest_at_the_end(frames):
    spans = [cut.payload for cut in sing(frames, async_chunk=True) if not isinstance(cut.payload, CodesLogged)]
    assert [span.index for span in spans] == list(range(len(spans)))
    assert all(isinstance(span, SpanWindow) for span in spans[:-1]) and isinstance(spans[-1], SpanTerminal)
    assert [span.frames for span in spans[:-1]] == [200, 100, 100, 100, 100, 100, 100, 100][: len(spans) - 1]
    left = frames - 100 * (len(spans) - 1)  # what the terminal span's windows cover
    assert left <= 201 and (left <= 200 or frames > 200)
    assert spans[0].codes.shape[0] == spans[0].frames + 1  # draw 0 comes first


@pytest.mark.parametrize("frames", LENGTHS)
def test_a_terminal_span_covers_201_frames_only_where_the_budget_ended_the_song(frames):
    """1,608 tokens at eight codebooks: what a window's budget must hold."""
    spans = [
        cut.payload for cut in sing(frames, async_chunk=True, stops=True) if not isinstance(cut.payload, CodesLogged)
    ]
    assert frames - 100 * (len(spans) - 1) <= 200


def test_no_hop_is_without_its_codes():
    for async_chunk in (True, False):
        logged_draws = 0
        for cut in sing(1000, async_chunk=async_chunk)[:-1]:
            span = cut.payload
            last = (
                span.start_draw + span.codes.shape[0]
                if isinstance(span, CodesLogged)
                else span.start_frame + span.frames + 1
            )
            assert last - logged_draws <= 101
            logged_draws = max(logged_draws, last)
        assert logged_draws >= 900


@pytest.mark.parametrize("async_chunk", [True, False])
@pytest.mark.parametrize("frames", [57, 250, 430, 799])
def test_a_takeover_after_any_event_goes_on_where_the_log_ends(frames, async_chunk):
    whole = sing(frames, async_chunk=async_chunk)
    for cut in range(len(whole)):
        before = logged(whole[:cut])
        rest = sing(frames, async_chunk=async_chunk, log=before)
        assert [(c.payload, c.conditioning) for c in rest] == [(c.payload, c.conditioning) for c in whole[cut:]]


def test_large_payloads_are_split_on_the_wire():
    (cut,) = (c for c in sing(150, async_chunk=True, width=16_384) if isinstance(c.payload, SpanTerminal))
    assert len(cut.conditioning) == 3
    assert max(len(raw) for _, raw in cut.conditioning) <= PART_BYTES + 200
    assert [entry for entry, _ in cut.conditioning] == ["1-0", "1-64", "1-128"]


def test_a_window_of_the_published_model_is_one_part():
    (cut,) = (c for c in sing(202, async_chunk=True, width=4096) if isinstance(c.payload, SpanWindow))
    assert len(cut.conditioning) == 1


@pytest.mark.parametrize("plan", [WindowPlan(200, 100), WindowPlan(10, 10), WindowPlan(7, 3)])
def test_windows_tile_the_song(plan):
    for frames in range(1, 60):
        bounds = [plan.bounds(index, frames) for index in range(plan.count(frames))]
        assert bounds[0][0] == 0 and bounds[-1][1] == frames
        assert all(end - start == plan.window for start, end in bounds[:-1])
        for (start, _), (later, _) in itertools.pairwise(bounds):
            assert later - start == plan.hop
        assert bounds[-1][1] > (bounds[-2][1] if len(bounds) > 1 else 0)
        whole = plan.whole(frames)
        assert whole == sum(end < frames for _, end in bounds)  # known to be whole, and not the last
        assert plan.sent_with(whole) <= frames
