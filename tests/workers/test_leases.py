"""Owning jobs: what a worker learns at renewal, and what becomes of one that is stuck."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import redis

from broker_schemas import events as ev
from broker_schemas import keys, log
from tests.stand_ins import QUICK, request
from tests.waiting import PATIENCE_S
from workers.leases import STALLED, Keeper, Lease, Leases, Refusal, Watchdog

JOB = "job_x"


def take(leases: Leases, job: str = JOB):
    [(taken, lease)] = leases.take([job])
    assert taken == job
    return lease


@pytest.fixture
def leases(broker):
    log.Scripts(broker.client())(log.append(request(), job=JOB, by="test"))
    return Leases(broker.client(), role="talker", worker="w", profile="p", settings=QUICK)


def test_a_renewal_tells_that_the_job_is_over(leases, broker):
    lease = take(leases)
    leases.renew()
    assert lease.over is None
    log.Scripts(broker.client())(log.append(ev.JobCancelled(by_whom="me"), job=JOB, by="api", ttl_ms=60_000))
    leases.renew()
    assert lease.over == "job.cancelled"


def test_a_renewal_tells_that_another_took_over(leases, broker):
    lease = take(leases)
    leases.release(lease, handed_over=True)
    other = Leases(broker.client(), role="talker", worker="other", profile="p", settings=QUICK)
    assert isinstance(take(other), Lease)
    leases._held[JOB] = lease  # it does not know yet
    leases.renew()
    assert lease.over == "lost"


def test_a_renewal_tells_that_the_job_is_gone(leases, broker):
    lease = take(leases)
    broker.client().flushall()
    leases.renew()
    assert lease.over == "gone"


def test_what_cannot_be_taken(leases, broker):
    other = Leases(broker.client(), role="talker", worker="other", profile="p", settings=QUICK)
    take(leases)
    assert take(other) == Refusal("held")
    assert take(other, "job_none") == Refusal("gone")


def test_several_are_taken_at_once(leases, broker):
    for n in range(3):
        log.Scripts(broker.client())(log.append(request(), job=f"job_{n}", by="test"))
    other = Leases(broker.client(), role="talker", worker="other", profile="p", settings=QUICK)
    take(other, "job_1")
    taken = dict(leases.take(["job_0", "job_1", "job_none", "job_2"]))
    assert isinstance(taken["job_0"], Lease) and isinstance(taken["job_2"], Lease)
    assert (taken["job_1"], taken["job_none"]) == (Refusal("held"), Refusal("gone"))
    assert {lease.job for lease in leases.held()} == {"job_0", "job_2"}
    assert leases.take([]) == []


def test_one_that_cannot_be_taken_for_want_of_memory_is_left_out(leases, broker, monkeypatch):
    log.Scripts(broker.client())(log.append(request(), job="job_y", by="test"))
    many = leases._run.many
    full = redis.exceptions.OutOfMemoryError("OOM")
    monkeypatch.setattr(leases._run, "many", lambda calls: [*many(calls[:-1]), full])
    [(job, lease)] = leases.take([JOB, "job_y"])
    assert job == JOB and leases.held() == [lease]


def test_the_keeper_renews_while_the_step_runs(broker):
    """Renewal runs outside the step's thread: a long step does not cost the job."""
    patient = replace(QUICK, ttl_s=10.0)
    leases, other = (
        Leases(broker.client(), role="talker", worker=name, profile="p", settings=patient) for name in ("w", "other")
    )
    log.Scripts(broker.client())(log.append(request(), job=JOB, by="test"))
    lease = take(leases)

    def expires() -> int:
        return int(broker.client().hget(keys.lease(JOB, "talker"), "expires"))

    keeper = Keeper(leases, [Watchdog("loop", 60)], lambda: None, ttl_s=0.3)
    first = expires()
    keeper.start()
    try:
        while expires() < first + 1000:  # ms: some ten renewals
            assert take(other) == Refusal("held")
    finally:
        keeper.stop()
    assert lease.over is None


def test_a_stuck_process_ends_itself(leases, monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("workers.leases.time", clock)
    looked, ended = threading.Semaphore(0), []
    watchdog = Watchdog("loop", 0.2, end=ended.append)
    keeper = Keeper(leases, [watchdog], looked.release, ttl_s=0.03)

    def looks() -> None:
        """The keeper has looked since."""
        for _ in range(2):
            assert looked.acquire(timeout=PATIENCE_S)

    keeper.start()
    for _ in range(5):
        clock.now += 0.15
        watchdog.beat()
        looks()
    assert not ended
    clock.now += 0.25
    looks()
    keeper.stop()
    assert ended and set(ended) == {STALLED}
