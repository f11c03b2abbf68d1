from dataclasses import replace

import numpy as np
import pytest

from broker_schemas import events as ev
from broker_schemas.codec import DecodeError, Tensor, pack, unpack
from broker_schemas.events import Event, NewerVersion, decode
from broker_schemas.job import BrokenLog, Status, fold, logged_codes


def codes(first: int, last: int) -> Tensor:
    return Tensor.of(np.arange(first * 8, last * 8, dtype=np.int16).reshape(-1, 8))


REQUESTED = ev.JobRequested(model="m", input="la", params={}, seed=1, owner="o", deadline=9)
ADMITTED = ev.JobAdmitted(role="talker", worker="t", attempt=1, rows=2, profile="p", token="a")
FIRST = ev.SpanWindow(index=0, start_frame=0, frames=200, codes=codes(0, 201), conditioning="")
LAST = ev.SpanTerminal(index=1, start_frame=200, frames=50, codes=codes(201, 251), conditioning="", reason="stop")
CHUNKS = [
    ev.AudioChunk(index=0, samples=7, start_sample=0, sha256=""),
    ev.AudioChunk(index=1, samples=5, start_sample=7, sha256=""),
]
COMPLETED = ev.JobCompleted(samples=12, frames=250, reason="stop")
SONG = [REQUESTED, ADMITTED, FIRST, CHUNKS[0], LAST, CHUNKS[1], COMPLETED]


def log(*payloads) -> list[Event]:
    return [
        Event(type=payload.type, job="j", seq=seq, at=1000 * seq, by="t", data=payload.data(), payload=payload)
        for seq, payload in enumerate(payloads, 1)
    ]


def test_a_song_folds_from_queued_to_completed():
    seen = [fold(log(*SONG[:n])).status for n in range(1, len(SONG) + 1)]
    assert seen == ["queued", "talking", "talking", "sounding", "sounding", "sounding", "completed"]
    state = fold(log(*SONG))
    assert (state.frames, state.samples, state.chunks, state.reason, state.draws) == (250, 12, 2, "stop", 251)


def test_folding_in_pieces_is_folding_at_once():
    events = log(*SONG)
    for cut in range(len(events)):
        assert fold(events[cut:], fold(events[:cut])) == fold(events)


@pytest.mark.parametrize(
    "final", [COMPLETED, ev.JobCancelled(by_whom="me"), ev.JobFailed(code="c", message="m", retryable=True)]
)
def test_nothing_changes_a_final_state_but_the_freed_rows(final):
    freed = ev.RowsFreed(rows=2, step=5, why="w", token="a")
    before = fold(log(REQUESTED, ADMITTED, final))
    after = fold(log(REQUESTED, ADMITTED, final, FIRST, freed, ev.JobCancelled(by_whom="you")))
    assert replace(after, seq=before.seq, rows_freed=()) == before
    assert after.rows_freed == (freed,) and before.status.final


@pytest.mark.parametrize(
    "payloads",
    [
        (REQUESTED, ADMITTED, LAST),  # a gap of spans
        (REQUESTED, ADMITTED, FIRST, FIRST),
        (REQUESTED, ADMITTED, FIRST, CHUNKS[1]),  # a gap of chunks
        (REQUESTED, ADMITTED, FIRST, CHUNKS[0], CHUNKS[0]),
    ],
)
def test_a_gap_or_a_repeat_breaks_the_log(payloads):
    with pytest.raises(BrokenLog):
        fold(log(*payloads))


def test_a_missing_event_breaks_the_log():
    events = log(*SONG)
    with pytest.raises(BrokenLog):
        fold(events[:2] + events[3:])


def test_an_unknown_type_is_skipped():
    strange = Event(type="job.sneezed", job="j", seq=2, at=0, by="t", data={}, payload=None)
    assert fold([log(REQUESTED)[0], strange]).status is Status.QUEUED


def envelope(**changes) -> bytes:
    values = {"v": "1.0", "type": "job.cancelled", "job": "j", "seq": 1, "at": 2, "by": "x", "data": {"by_whom": "me"}}
    return pack(values | changes)


def test_unknown_fields_are_kept():
    event = decode(envelope(v="1.7", data={"by_whom": "me", "mood": "sad"}))
    assert event.payload.extra == {"mood": "sad"} and event.payload.data() == {"by_whom": "me", "mood": "sad"}
    assert unpack(pack(event.payload.data()))["mood"] == "sad"


def test_a_newer_major_is_refused_and_says_what_to_do():
    with pytest.raises(NewerVersion, match="upgrade"):
        decode(envelope(v="2.0"))


@pytest.mark.parametrize("raw", [b"\x80", pack([1]), envelope(v="x"), envelope(data={})])
def test_what_is_no_event_is_refused(raw):
    with pytest.raises(DecodeError):
        decode(raw)


def test_the_logged_codes_are_those_of_hops_and_spans_together():
    hop = ev.CodesLogged(start_draw=0, codes=codes(0, 101))
    for payloads in (
        (FIRST, LAST),
        (hop, FIRST, LAST),
        (hop, FIRST, ev.CodesLogged(start_draw=201, codes=codes(201, 230)), LAST),
    ):
        assert np.array_equal(logged_codes(log(REQUESTED, *payloads)), codes(0, 251).numpy())


def test_codes_logged_twice_must_agree():
    other = replace(FIRST, codes=codes(1, 202))
    with pytest.raises(BrokenLog):
        logged_codes(log(ev.CodesLogged(start_draw=0, codes=codes(0, 101)), other))
    with pytest.raises(BrokenLog):
        logged_codes(log(ev.CodesLogged(start_draw=5, codes=codes(5, 9))))
