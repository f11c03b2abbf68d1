"""Owning jobs: what a worker learns at renewal, and what becomes of one that is stuck."""

from __future__ import annotations

import time

import pytest

from broker_schemas import events as ev
from broker_schemas import log
from tests.stand_ins import QUICK, request
from workers.leases import STALLED, Keeper, Lease, Leases, Refusal, Watchdog

JOB = "job_x"


@pytest.fixture
def leases(broker):
    log.Scripts(broker.client())(log.append(request(), job=JOB, by="test"))
    return Leases(broker.client(), role="talker", worker="w", profile="p", settings=QUICK)


def test_a_renewal_tells_that_the_job_is_over(leases, broker):
    lease = leases.take(JOB)
    leases.renew()
    assert lease.over is None
    log.Scripts(broker.client())(log.append(ev.JobCancelled(by_whom="me"), job=JOB, by="api", ttl_ms=60_000))
    leases.renew()
    assert lease.over == "job.cancelled"


def test_a_renewal_tells_that_another_took_over(leases, broker):
    lease = leases.take(JOB)
    leases.release(lease, handed_over=True)
    other = Leases(broker.client(), role="talker", worker="other", profile="p", settings=QUICK)
    assert isinstance(other.take(JOB), Lease)
    leases._held[JOB] = lease  # it does not know yet
    leases.renew()
    assert lease.over == "lost"


def test_a_renewal_tells_that_the_job_is_gone(leases, broker):
    lease = leases.take(JOB)
    broker.client().flushall()
    leases.renew()
    assert lease.over == "gone"


def test_what_cannot_be_taken(leases, broker):
    other = Leases(broker.client(), role="talker", worker="other", profile="p", settings=QUICK)
    leases.take(JOB)
    assert other.take(JOB) == Refusal("held")
    assert other.take("job_none") == Refusal("gone")


def test_the_keeper_renews_while_the_step_runs(leases, broker):
    """Renewal runs outside the step's thread: a long step does not cost the job."""
    lease = leases.take(JOB)
    keeper = Keeper(leases, [Watchdog("loop", 60)], lambda: None, QUICK.ttl_s)
    keeper.start()
    other = Leases(broker.client(), role="talker", worker="other", profile="p", settings=QUICK)
    try:
        ends = time.monotonic() + 2 * QUICK.ttl_s
        while time.monotonic() < ends:
            assert other.take(JOB) == Refusal("held")
            time.sleep(0.05)
    finally:
        keeper.stop()
    assert lease.over is None


def test_a_stuck_process_ends_itself(leases):
    ended = []
    watchdog = Watchdog("loop", 0.2, end=ended.append)
    keeper = Keeper(leases, [watchdog], lambda: None, ttl_s=0.1)
    keeper.start()
    for _ in range(10):
        watchdog.beat()
        time.sleep(0.05)
    assert not ended
    time.sleep(0.4)
    keeper.stop()
    assert ended and set(ended) == {STALLED}
