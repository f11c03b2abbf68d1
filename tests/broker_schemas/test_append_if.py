"""append-if and leases, on both brokers."""

import numpy as np
import pytest

from broker_schemas import events as ev
from broker_schemas import keys, log
from broker_schemas.codec import Tensor
from broker_schemas.events import decode
from broker_schemas.job import fold
from tests.stand_ins import request

JOB = "job_x"


@pytest.fixture
def client(broker):
    return broker.client()


@pytest.fixture
def run(client):
    return log.Scripts(client)


@pytest.fixture
def append(run):
    def append(payload, token="", role="", **kwargs):
        return run(log.append(payload, job=JOB, by="test", token=token, role=role, ttl_ms=60_000, **kwargs))

    return append


@pytest.fixture
def owned(append, run):
    """A requested job, with both leases taken by the tokens t and a."""
    assert append(request())[0] == "ok"
    assert take(run, "talker", "t")[0] == "ok"
    assert take(run, "acoustic", "a")[0] == "ok"


def take(run, role, token, *, profile="p", ttl_ms=60_000, max_strikes=3):
    return run(
        log.take_lease(
            JOB, role, token=token, worker=f"w-{token}", ttl_ms=ttl_ms, profile=profile, max_strikes=max_strikes
        )
    )


def codes(draws):
    return Tensor.of(np.ones((draws, 8), np.int16))


def span(index, fill="x"):
    return ev.SpanWindow(
        index=index,
        start_frame=0 if index == 0 else 100 + 100 * index,
        frames=200 if index == 0 else 100,
        codes=codes(201 if index == 0 else 100),
        conditioning=fill,
    )


def chunk(index, sha="s"):
    return ev.AudioChunk(index=index, samples=10, start_sample=10 * index, sha256=sha)


def events(client):
    return [decode(entry[b"e"]) for _, entry in client.xrange(keys.log(JOB))]


def dump(client):
    """All that the broker holds, but for the scripts' clock."""
    found = {}
    for key in client.scan_iter():
        kind = client.type(key)
        found[key] = {b"stream": client.xrange, b"hash": client.hgetall, b"string": client.get}[kind](key)
    return found


def test_the_script_numbers_the_events_and_stamps_the_time(append, client, owned):
    append(span(0), "t", "talker", conditioning=[("1-0", b"frames")])
    logged = events(client)
    assert [event.seq for event in logged] == [1, 2] and logged[1].payload == span(0)
    assert abs(logged[1].at - client.time()[0] * 1000) < 5000
    assert client.xrange(keys.log(JOB))[1][0] == b"2-0"


def test_an_event_needs_a_job(append, client):
    assert append(chunk(0), "a", "acoustic")[0] == "gone"
    assert append(ev.JobCancelled(by_whom="me"))[0] == "gone"
    assert not client.keys()


def test_the_same_event_is_written_once(append, client, owned):
    assert append(span(0), "t", "talker", conditioning=[("1-0", b"f")])[0] == "ok"
    before = dump(client)
    assert append(span(0), "t", "talker", conditioning=[("1-0", b"f")])[0] == "already"
    assert dump(client) == before


def test_one_index_with_two_contents_is_a_conflict(append, client, owned):
    append(span(0), "t", "talker", conditioning=[("1-0", b"f")])
    before = dump(client)
    assert append(span(0, "other"), "t", "talker", conditioning=[("1-0", b"g")])[0] == "conflict"
    terminal = ev.SpanTerminal(index=0, start_frame=0, frames=200, codes=codes(201), conditioning="x", reason="stop")
    assert append(terminal, "t", "talker")[0] == "conflict"
    assert dump(client) == before


def test_only_the_next_span_and_the_next_chunk_are_taken(append, client, owned):
    before = dump(client)
    assert append(span(1), "t", "talker") == ["gap", 0, "0"]
    assert append(chunk(1), "a", "acoustic", pcm=b"p") == ["gap", 0, "0"]
    assert append(ev.CodesLogged(start_draw=100, codes=codes(3)), "t", "talker") == ["gap", 0, "0"]
    assert dump(client) == before


def test_nothing_follows_the_terminal_span(append, owned):
    append(
        ev.SpanTerminal(index=0, start_frame=0, frames=3, codes=codes(4), conditioning="", reason="stop"), "t", "talker"
    )
    assert append(span(1), "t", "talker")[0] == "gap"


def test_another_token_writes_nothing(append, client, owned):
    before = dump(client)
    assert append(span(0), "stale", "talker")[0] == "lost"
    assert append(chunk(0), "t", "acoustic")[0] == "lost"
    assert append(ev.JobFailed(code="c", message="m", retryable=False), "stale", "talker")[0] == "lost"
    assert dump(client) == before


@pytest.mark.parametrize("final", [ev.JobCancelled(by_whom="me"), ev.JobFailed(code="c", message="m", retryable=True)])
def test_a_final_job_takes_freed_rows_and_nothing_else(append, client, owned, final):
    append(span(0), "t", "talker", conditioning=[("1-0", b"f")])
    assert append(final)[0] == "ok"
    state = fold(events(client))
    for payload, token, role in (
        (span(1), "t", "talker"),
        (chunk(0), "a", "acoustic"),
        (ev.JobCompleted(samples=0, frames=0, reason=""), "a", "acoustic"),
    ):
        assert append(payload, token, role) == ["final", 0, final.type]
    assert append(ev.RowsFreed(rows=2, step=1, why="w", token="t"))[0] == "ok"
    after = fold(events(client))
    assert after.status == state.status and after.rows_freed[0].rows == 2


def test_a_final_jobs_keys_go_together(append, client, owned):
    append(span(0), "t", "talker", conditioning=[("1-0", b"f")])
    append(chunk(0), "a", "acoustic", pcm=b"p", carry=b"c")
    append(ev.JobCancelled(by_whom="me"))
    append(ev.RowsFreed(rows=2, step=1, why="w", token="t"))
    assert not client.exists(keys.spans(JOB), keys.carry(JOB))
    left = [client.pttl(key) for key in keys.job_keys(JOB) if client.exists(key)]
    assert len(left) == 5 and min(left) > 55_000 and max(left) <= 60_000


def test_a_chunk_comes_with_its_carry_and_trims_what_is_consumed(append, client, owned):
    append(span(0), "t", "talker", conditioning=[("1-0", b"f"), ("1-100", b"g")])
    append(span(1), "t", "talker", conditioning=[("2-200", b"h")])
    assert append(chunk(0), "a", "acoustic", pcm=b"p", carry=b"c", trim="1-101")[0] == "ok"
    assert client.get(keys.carry(JOB)) == b"c"
    assert [entry for entry, _ in client.xrange(keys.spans(JOB))] == [b"2-200"]
    assert client.xrange(keys.audio(JOB)) == [(b"1-0", {b"pcm": b"p", b"start": b"0", b"sha256": b"s"})]


# --- leases -----------------------------------------------------------------------------------------------------------


def test_one_worker_owns_a_job(append, run):
    append(request())
    assert take(run, "talker", "one")[:2] == ["ok", 1]
    status, holder, left = take(run, "talker", "two")
    assert (status, holder) == ("held", "w-one") and 0 < left <= 60_000
    assert take(run, "acoustic", "two")[0] == "ok"


def test_only_the_token_renews(append, run):
    append(request())
    take(run, "talker", "one")
    assert run(log.renew_lease(JOB, "talker", token="one", ttl_ms=5)) == ["ok", ""]
    assert run(log.renew_lease(JOB, "talker", token="two", ttl_ms=5)) == ["lost"]


def test_renewing_tells_that_the_job_is_over(append, run):
    append(request())
    take(run, "talker", "one")
    append(ev.JobCancelled(by_whom="me"))
    assert run(log.renew_lease(JOB, "talker", token="one", ttl_ms=5)) == ["ok", "job.cancelled"]


def test_a_lapsed_lease_is_taken_over_and_its_owner_shut_out(append, run):
    append(request())
    take(run, "talker", "one", ttl_ms=0)
    assert take(run, "talker", "two")[:2] == ["ok", 2]
    assert append(span(0), "one", "talker")[0] == "lost"
    assert run(log.renew_lease(JOB, "talker", token="one", ttl_ms=5)) == ["lost"]


def test_only_the_same_profile_takes_over(append, run):
    append(request())
    take(run, "talker", "one", ttl_ms=0, profile="p")
    assert take(run, "talker", "two", profile="q") == ["profile", "p"]


def test_takeovers_without_progress_exhaust_a_job(append, run):
    append(request())
    assert take(run, "talker", "t0", ttl_ms=0)[2] == 0
    for strike in range(1, 4):
        run(log.release_lease(JOB, "talker", token=f"t{strike - 1}", handed_over=False, error=f"error {strike}"))
        assert take(run, "talker", f"t{strike}", ttl_ms=0)[:3] == ["ok", strike + 1, strike]
    assert take(run, "talker", "t4", ttl_ms=0) == ["exhausted", "error 3"]


def test_progress_and_hand_overs_are_no_strikes(append, run):
    append(request())
    take(run, "talker", "t0", ttl_ms=0)
    for attempt in range(1, 9):
        if attempt % 2:
            run(log.release_lease(JOB, "talker", token=f"t{attempt - 1}", handed_over=True))
        else:
            index = attempt // 2 - 1
            assert append(span(index), f"t{attempt - 1}", "talker")[0] == "ok"
        assert take(run, "talker", f"t{attempt}", ttl_ms=0, max_strikes=0)[2] == 0


def test_pointers_are_posted_once_and_dropped_once(run, client):
    stream = keys.ready("m")
    assert [run(log.post_pointer(stream, "j"))[0] for _ in range(3)] == [1, 0, 0]
    client.xgroup_create(stream, keys.group("acoustic"), id="0")
    client.xreadgroup(keys.group("acoustic"), "me", {stream: ">"})
    assert [run(log.drop_pointer(stream, "j", "acoustic"))[0] for _ in range(2)] == [1, 0]
    assert client.xlen(stream) == 0 and client.xpending(stream, keys.group("acoustic"))["pending"] == 0


def test_reservations_are_bounded_by_jobs_and_by_bytes(run, client):
    def reserve(job, bytes_):
        return run(log.reserve(job, bytes_=bytes_, max_jobs=3, max_bytes=100, owner="o", model="m"))[0]

    assert [reserve("a", 60), reserve("a", 60), reserve("b", 60), reserve("b", 40)] == [1, 1, 0, 1]
    run(log.give_back("a"))
    run(log.give_back("a"))
    assert [reserve("c", 60), reserve("d", 1)] == [1, 0]
    for job in "bc":
        run(log.give_back(job))
    assert not client.exists(keys.LIVE, keys.RESERVED)


def test_a_final_job_holds_its_sound_until_its_keys_go(run, client):
    def reserve(job, bytes_):
        return run(log.reserve(job, bytes_=bytes_, max_jobs=3, max_bytes=100, owner="o", model="m"))[0]

    def retire(job, bytes_):
        for call in log.retire(job, model="m", owner="o", ttl_ms=1000, bytes_=bytes_):
            run(call)

    reserve("a", 60)
    for _ in range(2):
        retire("a", 30)
    assert client.zcard(keys.LIVE) == 0 and client.llen(keys.RETIREMENTS) == 1
    assert [reserve("b", 71), reserve("b", 70)] == [0, 1]
    retire("b", 0)
    run(log.give_back("a", "o"))
    assert not client.exists(keys.LIVE, keys.RESERVED)
    assert client.zrange(keys.EXPIRING, 0, -1) == [b"o/b"]
