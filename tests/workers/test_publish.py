"""Events are written many at a time, and are in the log as if each had been written by itself."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from redis.exceptions import OutOfMemoryError

from broker_schemas import events as ev
from broker_schemas import keys, log
from broker_schemas.codec import Tensor
from tests.stand_ins import QUICK, request
from tests.waiting import PATIENCE_S
from workers.leases import Lease, Leases, Watchdog
from workers.publish import Entry, Mark, Publisher

JOBS = ("job_a", "job_b", "job_c")


@pytest.fixture
def client(broker):
    return broker.client()


@pytest.fixture
def leases(broker, client) -> dict[str, Lease]:
    run = log.Scripts(client)
    for job in JOBS:
        run(log.append(request(), job=job, by="test"))
    taken = Leases(broker.client(), role="talker", worker="w", profile="p", settings=QUICK).take(list(JOBS))
    return dict(taken)


@pytest.fixture
def publisher(broker) -> Publisher:
    return Publisher(
        broker.client(), model="instant", worker="w", watchdog=Watchdog("publisher", 60), waiting=lambda: None
    )


def admitted(lease: Lease) -> Entry:
    payload = ev.JobAdmitted(role="talker", worker="w", rows=2, attempt=1, profile="p", token=lease.token)
    return Entry(lease, payload, "anonymous", 60_000)


def span(lease: Lease, index: int) -> Entry:
    codes = Tensor.of(np.full((1, 8), index, np.int16))
    payload = ev.SpanWindow(index=index, start_frame=index, frames=1, codes=codes, conditioning="", lead=0)
    return Entry(lease, payload, "anonymous", 60_000, {"after": index})


def chunk(lease: Lease, index: int, sha256: str) -> Entry:
    payload = ev.AudioChunk(index=index, samples=1, start_sample=index, sha256=sha256)
    return Entry(lease, payload, "anonymous", 60_000, {"pcm": b"ab"})


def freed(lease: Lease) -> Entry:
    return Entry(lease, ev.RowsFreed(rows=2, step=1, why="done", token=lease.token), "anonymous", 60_000)


def written(client, job: str) -> list[str]:
    events = [ev.decode(entry[b"e"]) for _, entry in client.xrange(keys.log(job))]
    return [f"{e.type}{getattr(e.payload, 'index', '')}" for e in events][1:]


def without_memory_once(publisher: Publisher, place: int) -> None:
    """The broker has no memory for the event at this place of the first batch, and for all others."""
    exchange, failed = publisher._run._exchange, []

    def once(calls, then):
        if failed:
            return exchange(calls, then)
        failed.append(place)
        return [*exchange(calls[:place], None), OutOfMemoryError("OOM"), *exchange(calls[place + 1 :], then)]

    publisher._run._exchange = once


def publish(publisher: Publisher, entries: list[Entry]) -> list[bool]:
    """The fate of each, in the order in which they were settled."""
    fates: dict[int, bool] = {}
    for number, entry in enumerate(entries):
        settled = lambda fate, number=number: fates.setdefault(number, fate)  # noqa: E731
        publisher.put(Entry(entry.lease, entry.payload, entry.owner, entry.ttl_ms, entry.companions, settled))
    publisher.start()
    publisher.stop()
    assert list(fates) == sorted(fates) and len(fates) == len(entries)
    return list(fates.values())


def test_a_batch_is_in_the_logs_in_its_order(publisher, client, leases):
    a, b, c = (leases[job] for job in JOBS)
    entries = [admitted(a), admitted(b), span(a, 0), span(a, 1), admitted(c), span(b, 0), span(a, 2), freed(a)]
    assert publish(publisher, entries) == [True] * len(entries)
    assert written(client, "job_a") == ["job.admitted", "span.window0", "span.window1", "span.window2", "rows.freed"]
    assert written(client, "job_b") == ["job.admitted", "span.window0"]
    pointed = [entry[b"job"].decode() for _, entry in client.xrange(keys.ready("instant"))]
    assert sorted(pointed) == ["job_a", "job_b"]


def test_a_span_is_in_its_log_before_anything_points_to_it(publisher, client, leases):
    exchange, found = publisher._run._exchange, {}

    def look(calls, then):
        found.update({call.args[1]: written(client, call.args[1]) for call in calls if call.script == "pointer"})
        return exchange(calls, then)

    publisher._run._exchange = look
    log.Scripts(client)(log.append(ev.JobCancelled(by_whom="me"), job="job_c", by="api", ttl_ms=60_000))
    publish(publisher, [span(leases[job], 0) for job in JOBS])
    assert found == {"job_a": ["span.window0"], "job_b": ["span.window0"]}


def test_it_takes_few_exchanges(publisher, leases):
    exchanges, exchange = [], publisher._run._exchange
    publisher._run._exchange = lambda calls, then: exchanges.append(len(calls)) or exchange(calls, then)
    entries = [span(leases[job], index) for index in range(20) for job in JOBS]
    assert all(publish(publisher, entries))
    assert exchanges == [60, 3]


def test_one_that_is_refused_harms_no_other_job(publisher, client, leases):
    a, b, _ = (leases[job] for job in JOBS)
    log.Scripts(client)(log.append(ev.JobCancelled(by_whom="me"), job="job_a", by="api", ttl_ms=60_000))
    assert publish(publisher, [span(a, 0), span(b, 0), span(a, 1), span(b, 1)]) == [False, True, False, True]
    assert a.over == "job.cancelled" and b.over is None
    assert written(client, "job_b") == ["span.window0", "span.window1"]


def test_what_comes_after_one_that_could_not_be_written_is_sent_again(publisher, client, leases):
    """It was refused for want of that one, which is not its end."""
    a, b, _ = (leases[job] for job in JOBS)
    without_memory_once(publisher, 1)
    assert publish(publisher, [span(a, 0), span(a, 1), span(b, 0), span(a, 2)]) == [True] * 4
    assert written(client, "job_a") == ["span.window0", "span.window1", "span.window2"]
    assert written(client, "job_b") == ["span.window0"] and not (a.over or b.over)


def test_an_event_that_is_not_refused_out_of_its_order_waits_for_those_before_it(publisher, client, leases):
    a, b, _ = (leases[job] for job in JOBS)
    without_memory_once(publisher, 0)
    assert all(publish(publisher, [admitted(a), admitted(b), span(a, 0), freed(a)]))
    assert written(client, "job_a") == ["job.admitted", "span.window0", "rows.freed"]


def test_nothing_is_heard_after_a_chunk_that_differs_from_what_was_heard(publisher, client, leases):
    a, b, _ = (leases[job] for job in JOBS)
    run = log.Scripts(client)
    heard = chunk(a, 0, "heard").payload
    assert run(log.append(heard, job="job_a", by="w", token=a.token, role="talker", pcm=b"ab"))[0] == "ok"
    entries = [chunk(a, 0, "differs"), chunk(b, 0, "b"), chunk(a, 1, "next"), chunk(b, 1, "b")]
    assert publish(publisher, entries) == [False, True, False, True]
    assert written(client, "job_a") == ["audio.chunk0", "job.failed"]
    assert written(client, "job_b") == ["audio.chunk0", "audio.chunk1"]


def test_a_broker_that_has_forgotten_the_scripts_is_told_them_again(publisher, client, leases):
    client.script_flush()
    assert publish(publisher, [span(leases[job], 0) for job in JOBS]) == [True] * 3


def test_who_waits_for_all_before_it_is_told_after_them(publisher, leases):
    told, a = threading.Event(), leases["job_a"]
    seen: list[bool] = []
    publisher.put(span(a, 0))
    publisher.put(Mark(lambda written: (seen.append(written), told.set())))
    publisher.start()
    assert told.wait(PATIENCE_S) and seen == [False]
    publisher.stop()
