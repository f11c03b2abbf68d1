"""A long text's passages: what each goes on from, what the log has of them, and how they end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from broker_schemas.codec import Tensor
from broker_schemas.events import (
    CodesLogged,
    Event,
    JobAdmitted,
    JobRequested,
    PassageEnd,
    Payload,
    SpanTerminal,
    decode,
    encode_open,
)
from broker_schemas.job import JobState, fold, logged_codes
from tests.stand_ins import CODEBOOKS, RAMP, InstantRunner, request
from workers.talker.loops import LoopGuard
from workers.talker.passages import Passage, Reading, passage_seed, passages_of
from workers.talker.spans import Cut, SpanCutter

TEXT = "One. Two. Three. Four."
STARTS = [0, 5, 10, 17]
BUDGET = 60  # of each passage
NO_CODES = np.empty((0, CODEBOOKS), np.int16)


def asked(*ends_at: int, frames: int = 400, async_chunk: bool = True) -> JobRequested:
    """As many of the text's passages as there are ends: the draws at which the model ends each."""
    starts = STARTS[: len(ends_at)]
    ends = [*starts[1:], len(TEXT)]
    passages = [Passage(start, end, BUDGET).param() for start, end in zip(starts, ends, strict=True)]
    return request(
        input=TEXT, frames=frames, params={"passages": passages, "ends_at": list(ends_at), "async_chunk": async_chunk}
    )


class Job:
    """A job at a talker: its reading, the runner, and what was cut."""

    def __init__(self, asked: JobRequested, log: list[Event] = (), loops: LoopGuard | None = None) -> None:
        state = fold(log) if log else JobState(id="j")
        how = {"lead": 0, "async_chunk": asked.params["async_chunk"]}
        self.reading = Reading(
            asked, state, logged_codes(log) if log else NO_CODES, sent=SpanCutter.sent(state, **how),
            max_frames=asked.params["max_new_tokens"], lead=0, loops=loops,
        )  # fmt: skip
        self.cutter = SpanCutter(RAMP, state, **how)
        self.runner = InstantRunner(width=0)
        self.cuts: list[Cut] = []
        self.passages = [self.reading.passage]
        self.runner.admit(self.reading.passage, [])

    def finish(self) -> Job:
        reading = self.reading
        while reading.history.reason is None:
            self.runner.step()
            reading.take()
            self.cuts += self.cutter.cut(reading.history)
            if reading.passage.reason and not reading.history.reason:
                self.runner.free(reading.passage.job)
                reading.go_on()
                self.passages.append(reading.passage)
                self.runner.admit(reading.passage, [])
        return self

    @property
    def payloads(self) -> list[Payload]:
        return [cut.payload for cut in self.cuts]


def events(payloads: list[Payload]) -> list[Event]:
    admitted = JobAdmitted(role="talker", worker="w", attempt=1, rows=1, profile="p", token="t")
    return [Event(p.type, "j", seq, 0, "w", p.data(), p) for seq, p in enumerate([admitted, *payloads], 1)]


def ends(*of: tuple[int, str]) -> tuple[PassageEnd, ...]:
    return tuple(PassageEnd(frame, reason, False) for frame, reason in of)


def test_a_passage_goes_on_from_the_one_before():
    job = Job(asked(20, 30, 10)).finish()
    first, second, third = job.passages
    frames = np.stack(job.reading.history.codes)
    assert [p.request.input for p in job.passages] == ["One.", "One. Two.", "Two. Three. Four."]
    assert first.context is None
    assert np.array_equal(second.context, frames[:20]) and np.array_equal(third.context, frames[20:50])
    assert np.array_equal(np.concatenate([p.codes for p in job.passages]), frames)
    state = fold(events(job.payloads))
    assert (state.reason, state.frames) == ("stop", 60)
    assert state.ends == ends((20, "stop"), (50, "stop"), (60, "stop"))


def test_each_passage_has_a_noise_of_its_own():
    seeds = [passage_seed(seed, number) for seed in (0, 1, 2**63 - 1) for number in range(200)]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**63 for seed in seeds)
    job = Job(asked(20, 20, 20)).finish()
    assert [p.request.seed for p in job.passages] == [passage_seed(1, number) for number in range(3)]
    assert job.passages[0].request.seed == 1


def test_a_text_of_one_utterance_is_the_runners_own_history_and_its_events_are_as_ever():
    whole = request(frames=60)
    job = Job(whole).finish()
    assert job.reading.passage is job.reading.history and job.reading.history.request is whole
    assert not any("ends" in payload.data() for payload in job.payloads)
    assert passages_of(whole.params) == []


WAYS: dict[str, tuple[list[int], dict[str, Any]]] = {
    "stops": ([20, 30, 10, 40], {}),
    "at the ramp's and the hops' edges": ([31, 25, 25, 1], {}),
    "silent ones": ([0, 40, 0, 0], {}),
    "one that is cut off": ([20, 1000, 30, 10], {}),
    "the first is cut off": ([1000, 20, 5, 10], {}),
    "all are cut off": ([1000] * 4, {}),
    "the job's budget in the third": ([20, 30, 1000, 10], {"frames": 70}),
    "the job's budget at a passage's end": ([20, 30, 40, 10], {"frames": 50}),
}


@pytest.mark.parametrize("async_chunk", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_takeover_after_any_event_gives_the_same_events(way, async_chunk):
    ends_at, changes = WAYS[way]
    job = asked(*ends_at, async_chunk=async_chunk, **changes)
    whole = Job(job).finish().payloads
    assert logged_codes(events(whole)).tolist() == np.stack(Job(job).finish().reading.history.codes).tolist()
    for cut in range(len(whole)):
        assert Job(job, events(whole[:cut])).finish().payloads == whole[cut:]


def test_what_a_passage_has_in_the_log_is_repeated_and_not_drawn_anew():
    whole = Job(asked(20, 40, 10)).finish()
    span = whole.payloads[5]  # frames 31 to 55, of the second passage
    other = Tensor.of((span.codes.numpy() + 1) % 1024)
    log = events([*whole.payloads[:5], replace(span, codes=other)])
    job = Job(asked(20, 40, 10), log).finish()
    assert np.array_equal(job.reading.history.codes[:56], logged_codes(log))
    assert np.array_equal(job.passages[1].context, job.reading.history.codes[20:60])


@pytest.mark.parametrize("async_chunk", [True, False])
@pytest.mark.parametrize("second", range(20, 34))
def test_a_takeover_wherever_the_second_passage_ends_beside_a_windows_end(second, async_chunk):
    job = asked(11, second, 40, async_chunk=async_chunk)
    whole = Job(job).finish().payloads
    for cut in range(len(whole)):
        assert Job(job, events(whole[:cut])).finish().payloads == whole[cut:]


def test_no_event_brings_a_frame_without_the_ends_before_it():
    for second in range(40):
        logged = []
        for payload in Job(asked(13, second, 20, 7)).finish().payloads:
            logged += payload.ends
            frames = payload.end_draw
            assert [end for end in (13, 13 + second, 33 + second) if end <= frames] == [
                end.frame for end in logged if end.frame < 40 + second
            ]


def test_ends_travel_and_events_without_them_are_read():
    span = SpanTerminal(
        index=0, start_frame=0, frames=0, codes=Job(asked(3)).finish().payloads[-1].codes, conditioning="", lead=0,
        reason="stop", ends=ends((2, "stop"), (3, "length")),
    )  # fmt: skip
    envelope = b"\x87" + encode_open(span, job="j", by="w") + b"\xa3seq\x02\xa2at\x01"
    state = fold([*events([]), decode(envelope)])
    assert state.ends == ends((2, "stop"), (3, "length")) and isinstance(state.ends[0], PassageEnd)
    old = CodesLogged.from_data({"start_draw": 0, "codes": span.codes})
    assert old.ends == () and "ends" not in old.data()


# --- how passages end -------------------------------------------------------------------------------------------------


def test_a_passage_without_a_word_is_passed_over():
    job = Job(asked(20, 0, 10)).finish()
    assert [p.request.input for p in job.passages] == ["One.", "One. Two.", "One. Three. Four."]
    assert np.array_equal(job.passages[2].context, np.stack(job.reading.history.codes[:20]))
    assert (job.reading.history.frames, job.reading.history.reason) == (30, "stop")


def test_a_job_of_silent_passages_has_no_frames():
    job = Job(asked(0, 0)).finish()
    assert (job.reading.history.frames, job.reading.history.reason, job.cuts) == (0, "stop", [])


def test_a_passage_that_runs_away_is_cut_off_and_the_rest_is_spoken():
    """By its own budget; what follows goes on from what was well said."""
    job = Job(asked(20, 1000, 10)).finish()
    assert [p.frames for p in job.passages] == [20, BUDGET, 10]
    assert job.passages[2].request.input == "One. Three. Four."
    assert np.array_equal(job.passages[2].context, job.passages[1].context)
    state = fold(events(job.payloads))
    assert (state.reason, state.looped) == ("length", False)
    assert state.ends[1] == (20 + BUDGET, "length", False)


def test_a_first_passage_that_runs_away_is_no_model():
    job = Job(asked(1000, 10)).finish()
    assert job.passages[1].context is None and job.passages[1].request.input == "Two. Three. Four."


def test_a_passage_in_a_loop_is_cut_off_and_counted():
    class Caught(LoopGuard):
        def caught(self, codes):
            return len(codes) == 30

    job = Job(asked(20, 1000, 10), loops=Caught(1, 1)).finish()
    assert [p.frames for p in job.passages] == [20, 30, 10]
    for cut in range(len(job.cuts)):
        again = Job(asked(20, 1000, 10), events(job.payloads[:cut]), loops=Caught(1, 1)).finish()
        assert again.payloads == job.payloads[cut:]
    state = fold(events(job.payloads))
    assert (state.reason, state.looped) == ("length", True)
    assert state.ends[1] == (50, "length", True)


def test_the_jobs_budget_ends_it_in_any_passage():
    job = Job(asked(20, 30, 1000, 10, frames=70)).finish()
    assert [p.frames for p in job.passages] == [20, 30, 20]
    assert job.passages[2].max_frames == 20  # an engine may be some draws ahead
    assert (job.reading.history.frames, job.reading.history.reason) == (70, "length")
