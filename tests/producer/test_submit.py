import asyncio

import pytest

from broker_schemas import keys, log
from producer.submit import Full, JobIds, KeyReused, Limits, Producer, Unknown
from tests.stand_ins import acoustic, request, running, talker


async def test_the_same_idempotency_key_is_the_same_job(producer):
    first = await producer.submit(request(seed=1), reserve_bytes=1, body={"a": 1}, idempotency_key="k")
    again = await producer.submit(request(seed=2), reserve_bytes=1, body={"a": 1}, idempotency_key="k")
    assert (first.created, again.created) == (True, False) and first.id == again.id
    assert again.state.request.seed == 1
    other_owner = await producer.submit(request(owner="b"), reserve_bytes=1, body={"a": 1}, idempotency_key="k")
    assert other_owner.id != first.id and other_owner.created


async def test_what_a_key_has_made_before_is_found_without_a_request(producer, broker):
    asked = {"body": {"a": 1}, "idempotency_key": "k"}
    assert await producer.submitted_before("anonymous", **asked) is None
    first = await producer.submit(request(), reserve_bytes=7, **asked)
    client = broker.client()
    # as if a crash had come before the pointer
    log.Scripts(client)(log.drop_pointer(keys.requests("instant", "anonymous"), first.id, keys.TALKER))
    again = await producer.submitted_before("anonymous", **asked)
    assert (again.id, again.state, again.created) == (first.id, first.state, False)
    assert client.xlen(keys.requests("instant", "anonymous")) == 1
    assert client.hget(keys.RESERVED, "") == b"7"
    assert await producer.submitted_before("b", **asked) is None
    await producer.purge(first.id, "anonymous", by_whom="me")
    assert await producer.submitted_before("anonymous", **asked) is None


async def test_a_reused_key_with_another_body_is_refused(producer, broker):
    await producer.submit(request(), reserve_bytes=1, body={"a": 1}, idempotency_key="k")
    with pytest.raises(KeyReused):
        await producer.submit(request(), reserve_bytes=1, body={"a": 2}, idempotency_key="k")
    with pytest.raises(KeyReused):
        await producer.submitted_before("anonymous", body={"a": 2}, idempotency_key="k")
    assert broker.client().zcard(keys.LIVE) == 1


async def test_over_the_bound_nothing_is_written(producer, broker):
    producer.limits = Limits(max_jobs=2, max_bytes=100)
    for _ in range(2):
        await producer.submit(request(), reserve_bytes=40, body=1)
    before = len(broker.client().keys())
    with pytest.raises(Full) as full:
        await producer.submit(request(), reserve_bytes=1, body=1)
    assert 1 <= full.value.retry_after <= 600
    producer.limits = Limits(max_jobs=9, max_bytes=100)
    with pytest.raises(Full):
        await producer.submit(request(), reserve_bytes=21, body=1)
    assert len(broker.client().keys()) == before
    await producer.cancel((await producer.submit(request(), reserve_bytes=20, body=1)).id, by_whom="x")
    await producer.submit(request(), reserve_bytes=20, body=1)


async def test_retry_after_follows_the_pace_of_the_jobs(producer, broker):
    client = broker.client()
    now_ms = client.time()[0] * 1000
    for age_s in (90, 60, 30, 0):
        client.lpush(keys.RETIREMENTS, now_ms - age_s * 1000)
    producer.limits = Limits(max_jobs=0)
    with pytest.raises(Full) as full:
        await producer.submit(request(), reserve_bytes=1, body=1)
    assert 25 <= full.value.retry_after <= 31


async def test_retry_after_waits_for_the_keys_that_hold_the_bytes(producer, broker):
    producer.limits = Limits(max_bytes=10_000)
    run = log.Scripts(broker.client())
    for job, ttl_s in (("a", 100), ("b", 200)):
        run(log.hold(job, bytes_=4500, owner="o", model="m"))
        for call in log.retire(job, model="m", owner="o", ttl_ms=ttl_s * 1000, bytes_=4500):
            run(call)
    await producer.submit(request(), reserve_bytes=500, body=1)
    for wanted, about_s in ((4000, 100), (6000, 200)):
        with pytest.raises(Full) as full:
            await producer.submit(request(), reserve_bytes=wanted, body=2)
        assert about_s - 5 <= full.value.retry_after <= about_s


async def test_cancel_is_final_and_said_once(producer, broker):
    job = (await producer.submit(request(), reserve_bytes=1, body=1)).id
    first = await producer.cancel(job, by_whom="one")
    second = await producer.cancel(job, by_whom="two")
    assert first == second and second.cancelled_by == "one"
    assert broker.client().xlen(keys.TOMBSTONES) == 1
    with pytest.raises(Unknown):
        await producer.cancel("job_none", by_whom="x")


async def test_purge_forgets(producer, broker):
    job = (await producer.submit(request(), reserve_bytes=1, body=1)).id
    await producer.purge(job, "anonymous", by_whom="x")
    with pytest.raises(Unknown):
        await producer.jobs.state(job)
    left = {key.decode() for key in broker.client().scan_iter()}
    shared = {keys.TOMBSTONES, keys.owners("instant"), keys.bell("instant", "talker"), keys.RETIREMENTS}
    assert left <= shared | {keys.requests("instant", "anonymous")} and not any(job in key for key in left)


@pytest.mark.parametrize("at_once", [1, 2, 3, 9])
async def test_owners_are_served_in_turn(producer, broker, at_once):
    order = [(await producer.submit(request(owner="a", seed=n), reserve_bytes=1, body=n)).id for n in range(4)]
    late = (await producer.submit(request(owner="b"), reserve_bytes=1, body=9)).id
    from workers.inbox import Inbox

    inbox = Inbox(broker.client(), role="talker", model="instant", worker="w", min_idle_s=60)
    served = [inbox.new(at_once) for _ in range(6)]
    assert [job for jobs in served for job in jobs] == [order[0], late, *order[1:]]
    assert all(len(jobs) <= at_once for jobs in served) and served[-1] == []


def test_job_ids_know_their_owner():
    ids = JobIds(b"secret")
    job = ids.new("a")
    assert ids.issued_to(job, "a") and not ids.issued_to(job, "b")
    assert not JobIds(b"other").issued_to(job, "a")
    assert not any(ids.issued_to(bad, "a") for bad in ("", "job_", job[:-1], job + "x", job.upper()))
    assert ids.new("a", "k") == ids.new("a", "k") != ids.new("b", "k")


async def test_followers_may_come_at_any_time_and_any_number(producer, broker):
    from tests.test_pipeline import listen, sha256

    job = (await producer.submit(request(frames=430), reserve_bytes=1, body=1)).id
    early = [asyncio.create_task(listen(producer, job)) for _ in range(5)]
    await asyncio.sleep(0.05)
    with running(talker(broker), acoustic(broker)):
        heard = [await task for task in early]
    heard.append(await listen(producer, job))
    assert len({sha256(chunks) for _, chunks in heard}) == 1
    assert len({tuple(event.seq for event in events) for events, _ in heard}) == 1
    whole_events, whole_chunks = heard[0]
    for cut in range(-1, len(whole_chunks)):
        _, rest = await listen(producer, job, after_chunk=cut)
        assert rest == whole_chunks[cut + 1 :]
    events, chunks = await listen(producer, job, after_seq=3, sound=False)
    assert [event.seq for event in events] == [event.seq for event in whole_events[3:]] and not chunks


async def test_following_what_is_not_there(producer, broker):
    from producer.follow import Expired

    with pytest.raises(Unknown):
        async for _ in producer.jobs.follow("job_none"):
            pass
    job = (await producer.submit(request(), reserve_bytes=1, body=1)).id
    follower = producer.jobs.follow(job)
    await anext(follower)
    broker.client().delete(*keys.job_keys(job))
    with pytest.raises(Expired):
        await anext(follower)


async def test_a_state_is_read_anew_when_the_broker_forgot(producer, broker):
    client = broker.client()
    job = (await producer.submit(request(), reserve_bytes=1, body=1)).id
    before = {key: client.dump(key) for key in client.scan_iter()}
    await producer.cancel(job, by_whom="x")
    assert (await producer.jobs.state(job)).status.final
    client.flushall()
    for key, value in before.items():
        client.restore(key, 0, value)
    assert not (await producer.jobs.state(job)).status.final


async def test_a_producer_may_have_its_own_name(broker):
    client = broker.async_client()
    producer = Producer(client, ids=JobIds(b"s"), limits=Limits(), name="api-7")
    job = (await producer.submit(request(), reserve_bytes=1, body=1)).id
    assert (await producer.jobs.events(job))[0].by == "api-7"
    await client.aclose()
