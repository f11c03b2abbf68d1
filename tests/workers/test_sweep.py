"""A crash between log and pointer loses nothing; whatever the sweeper does may be done twice."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from broker_schemas import keys, log
from broker_schemas.codec import pack
from broker_schemas.events import JobCancelled
from broker_schemas.heartbeat import Heartbeat, broker_ms
from broker_schemas.job import Status
from producer.submit import Producer
from tests.stand_ins import QUICK, acoustic, request, running, sweeper, talker
from tests.waiting import reach


class Crash(Exception):
    pass


@pytest.fixture
def crashing(producer, monkeypatch):
    """The producer's connection breaks for good right after the named script or command."""

    def crash_after(what: str) -> None:
        run, xadd = producer._run, producer.client.xadd

        async def run_then_crash(call: log.Call):
            reply = await run(call)
            if call.script == what:
                raise Crash
            return reply

        async def crash(*_, **__):
            raise Crash

        monkeypatch.setattr(producer, "_run", run_then_crash)
        if what == "tombstone":
            monkeypatch.setattr(producer.client, "xadd", crash)
        return xadd

    return crash_after


async def done(producer, job: str, status: Status) -> None:
    await reach(producer, job, lambda state: state.status is status)


async def only_job(client) -> str:
    return client.zrange(keys.LIVE, 0, -1)[0].decode()


async def test_a_crash_between_log_and_pointer(producer, broker, crashing):
    crashing("append_if")
    with pytest.raises(Crash):
        await producer.submit(request(frames=50), reserve_bytes=1, body=1)
    job = await only_job(broker.client())
    assert broker.client().xlen(keys.requests("instant", "anonymous")) == 0
    for _ in range(2):
        sweeper(broker).sweep()
    assert broker.client().xlen(keys.requests("instant", "anonymous")) == 1
    with running(talker(broker), acoustic(broker)):
        await done(producer, job, Status.COMPLETED)


async def test_a_crash_between_span_and_ready_pointer(producer, broker):
    job = (await producer.submit(request(frames=50), reserve_bytes=1, body=1)).id
    worker = talker(broker)
    worker._ownership.publisher._point = lambda entry: None
    with running(worker):
        await reach(producer, job, lambda state: state.terminal)
    assert broker.client().xlen(keys.ready("instant")) == 0
    with running(acoustic(broker)):
        for _ in range(2):
            sweeper(broker).sweep()
        await done(producer, job, Status.COMPLETED)


async def test_a_crash_between_tombstone_event_and_tombstone(producer, broker, crashing):
    job = (await producer.submit(request(), reserve_bytes=1, body=1)).id
    crashing("tombstone")
    with pytest.raises(Crash):
        await producer.cancel(job, by_whom="test")
    client = broker.client()
    assert client.zcard(keys.LIVE) == 1 and not client.exists(keys.TOMBSTONES)
    for _ in range(2):
        sweeper(broker).sweep()
    assert client.zcard(keys.LIVE) == 0 and not client.hgetall(keys.RESERVED)
    assert client.xlen(keys.requests("instant", "anonymous")) == 0
    assert client.xrange(keys.TOMBSTONES)[0][1] == {b"job": job.encode()}


async def test_a_crash_before_the_log_gives_the_reservation_back(producer, broker, crashing):
    crashing("reserve")
    with pytest.raises(Crash):
        await producer.submit(request(), reserve_bytes=1, body=1)
    client = broker.client()
    sweeper(broker).sweep()
    assert client.zcard(keys.LIVE) == 1  # it may yet come
    client.zadd(keys.LIVE, {await only_job(client): int(time.time() * 1000) - 11_000})
    sweeper(broker).sweep()
    assert client.zcard(keys.LIVE) == 0 and not client.hgetall(keys.RESERVED)


async def test_a_log_without_its_request_is_left_alone_and_hides_no_other_job(producer, broker, crashing):
    client = broker.client()
    strange = (await producer.submit(request(), reserve_bytes=1, body=1)).id
    crashing("append_if")
    with pytest.raises(Crash):
        await producer.submit(request(), reserve_bytes=1, body=1)
    cancelled = JobCancelled(by_whom="x")
    event = {"v": 1, "type": cancelled.type, "job": strange, "seq": 1, "at": 0, "by": "x", "data": cancelled.data()}
    client.delete(keys.log(strange))
    client.xadd(keys.log(strange), {"e": pack(event)}, id="1-0")
    for _ in range(2):
        sweeper(broker).sweep()
    assert client.xlen(keys.requests("instant", "anonymous")) == 2  # the other's came by the sweep
    assert client.zcard(keys.LIVE) == 2 and client.xlen(keys.log(strange)) == 1


async def test_a_crash_between_the_last_event_and_the_reservation(producer, broker):
    job = (await producer.submit(request(), reserve_bytes=1, body=1)).id
    log.Scripts(broker.client())(log.append(JobCancelled(by_whom="x"), job=job, by="x", ttl_ms=60_000))
    for _ in range(2):
        sweeper(broker).sweep()
    assert broker.client().zcard(keys.LIVE) == 0
    assert broker.client().zscore(keys.EXPIRING, f"anonymous/{job}")


async def test_deadlines(producer, broker):
    job = (await producer.submit(request(deadline=1), reserve_bytes=1, body=1)).id
    for _ in range(2):
        sweeper(broker).sweep()
    state = await producer.jobs.state(job)
    assert state.error.code == "deadline_exceeded" and state.error.retryable and "deadline_s" in state.error.message


async def test_a_job_whose_profile_is_gone_fails_as_retryable(producer, broker):
    client = broker.client()
    job = (await producer.submit(request(), reserve_bytes=1, body=1)).id
    run = log.Scripts(client)
    run(log.take_lease(job, "talker", token="t", worker="w", ttl_ms=0, profile="old", max_strikes=3))

    def beat(profile: str, age_ms: int = 0) -> None:
        at = broker_ms(client.time()) - age_ms
        client.hset(keys.WORKERS, "w", Heartbeat("w", "talker", "instant", profile, at).pack())

    watching = sweeper(broker, replace(QUICK, orphan_s=0.4))

    async def swept_to(status: Status) -> None:
        watching.sweep()
        assert (await producer.jobs.state(job)).status is status

    beat("old")
    for _ in range(2):
        await swept_to(Status.QUEUED)
        await asyncio.sleep(0.5)
    beat("new")
    await swept_to(Status.QUEUED)
    beat("old")
    await asyncio.sleep(0.5)
    await swept_to(Status.QUEUED)
    beat("new")
    await swept_to(Status.QUEUED)
    await asyncio.sleep(0.5)
    sweeper(broker).sweep()  # another sweeper, which comes too late to have seen it
    assert (await producer.jobs.state(job)).status is Status.QUEUED
    await swept_to(Status.FAILED)
    error = (await producer.jobs.state(job)).error
    assert error.code == "profile_gone" and error.retryable


async def test_expired_jobs_leave_their_owners_list(producer: Producer, broker):
    client = broker.client()
    job = (await producer.submit(request(), reserve_bytes=1, body=1)).id
    await producer.cancel(job, by_whom="test")
    client.zadd(keys.EXPIRING, {f"anonymous/{job}": 1})
    sweeper(broker).sweep()
    assert client.zcard(keys.jobs("anonymous")) == 1  # its keys are there still
    client.delete(*keys.job_keys(job))
    sweeper(broker).sweep()
    assert not client.exists(keys.jobs("anonymous"), keys.EXPIRING)


async def test_a_job_that_ends_its_workers_fails_with_the_last_error(producer, broker):
    from tests.stand_ins import InstantAcoustic

    class Broken(InstantAcoustic):
        def decode(self, window):
            raise RuntimeError("out of memory, it says")

    with running(talker(broker), acoustic(broker, model=Broken())):
        job = (await producer.submit(request(frames=50), reserve_bytes=1, body=1)).id
        await done(producer, job, Status.FAILED)
        error = (await producer.jobs.state(job)).error
    assert error.code == "worker_lost" and error.retryable and "out of memory, it says" in error.message
    attempts = [event for event in await producer.jobs.events(job) if event.data.get("role") == "acoustic"]
    assert len(attempts) == 4  # one, and three takeovers
