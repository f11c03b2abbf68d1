"""A job's log as `songline show` tells it."""

from compose.timeline import timeline


def event(type_, at, by="worker", **data):
    return {"type": type_, "at": 1000 + at, "by": by, "data": data}


def admitted(role, worker, at, attempt=1, rows=1):
    return event("job.admitted", at, worker, role=role, worker=worker, attempt=attempt, rows=rows, profile="f" * 64)


def told(*events, rate=32_000):
    return [(what, detail) for _, what, _, detail in timeline(events, rate=rate)]


REQUESTED = event("job.requested", 0, "api", input="la la", model="hum", owner="ann")


def test_times_are_since_the_request_and_each_line_says_who():
    rows = timeline([REQUESTED, admitted("talker", "talker-a", 0.25)], rate=None)
    assert [(time.strip(), who) for time, _, who, _ in rows] == [("+0.000 s", "api"), ("+0.250 s", "talker-a")]


def test_a_takeover_names_the_place_the_attempt_and_who_had_the_job():
    resumed = event(
        "job.resumed", 3, "talker-b", role="talker", worker="talker-b", attempt=2, from_frame=120, from_window=None
    )
    assert told(REQUESTED, admitted("talker", "talker-a", 1), resumed)[-1] == (
        "taken over",
        "as talker at frame 120, from talker-a, attempt 2",
    )
    window = event("job.resumed", 4, "acoustic-b", role="acoustic", worker="acoustic-b", attempt=3, from_window=2)
    assert told(REQUESTED, window) == [
        ("requested", "5 characters for hum, by ann"),
        ("taken over", "as acoustic at window 2, attempt 3"),
    ]


def test_an_attempt_after_the_first_is_told():
    assert told(admitted("talker", "a", 1, rows=2)) == [("admitted", "as talker, 2 rows, profile ffffffffffff")]
    assert told(admitted("talker", "a", 1, attempt=2))[0][1].endswith("1 row, profile ffffffffffff, attempt 2")


def test_what_was_logged():
    tensor = {"dtype": "int16", "shape": [101, 8]}
    spans = {"codes": tensor, "conditioning": "", "lead": 1}
    last = {"reason": "length", "looped": False}
    assert told(
        event("codes.logged", 1, start_draw=0, codes=tensor),
        event("span.window", 1, index=0, start_frame=0, frames=200, **spans),
        event("span.terminal", 1, index=1, start_frame=200, frames=30, **spans, **last),
        event("span.terminal", 1, index=1, start_frame=200, frames=30, **spans, **last | {"looped": True}),
        event("span.terminal", 1, index=2, start_frame=230, frames=0, **spans, **last),
        event("audio.chunk", 2, index=0, samples=16_000, start_sample=0, sha256="a" * 64),
        event("rows.freed", 2, rows=2, step=9, why="done"),
        event("reference.encoded", 2, recording="b" * 64),
    ) == [
        ("codes", "draws 0 to 100"),
        ("span 0", "frames 0 to 199"),
        ("span 1", "frames 200 to 229, the last: length"),
        ("span 1", "frames 200 to 229, the last: it went in circles"),
        ("span 2", "no frames, the last: length"),
        ("chunk 0", "0.50 s of sound, sha256 aaaaaaaaaaaa"),
        ("rows freed", "2 at step 9: done"),
        ("voice encoded", "recording bbbbbbbbbbbb"),
    ]
    chunk = event("audio.chunk", 2, index=0, samples=16_000, start_sample=0, sha256="a" * 64)
    assert told(chunk, rate=None)[0][1].startswith("16000 samples")


def test_how_it_ended():
    assert told(
        event("job.completed", 1, samples=4, frames=2, reason="stop"),
        event("job.cancelled", 1, by_whom="client"),
        event("job.failed", 1, code="worker_lost", message="Gone.", retryable=True),
        event("job.failed", 1, code="no_frames", message="None.", retryable=False),
    ) == [
        ("completed", "2 frames, 4 samples: stop"),
        ("cancelled", "by client"),
        ("failed", "worker_lost: Gone. (may be sent again)"),
        ("failed", "no_frames: None. (would fail again)"),
    ]


def test_what_a_newer_version_logged_is_named():
    assert told(event("job.paused", 1, x=1)) == [("job.paused", "not known to this version")]
