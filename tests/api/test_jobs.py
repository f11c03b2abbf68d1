"""Submit, poll, list, cancel, purge."""

from __future__ import annotations

import asyncio
import time

import pytest

from api import jobs
from broker_schemas import keys
from broker_schemas.codec import pack, unpack
from tests.api.conftest import serving
from tests.waiting import PATIENCE_S, until


async def test_a_submitted_job_is_in_the_log_with_all_that_its_sound_depends_on(api):
    answer = await api.http.post(
        "/v1/jobs", json={"model": "hum", "input": "la", "instructions": "soft", "metadata": {"a": "b"}, "user": "u"}
    )
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}" == job["links"]["self"]
    assert job["status"] == "queued" and job["queue_position"] == 1
    assert 0 <= job["seed"] < 1 << 63
    assert job["params"] == {"instructions": "soft", "max_new_tokens": 500}
    assert job["metadata"] == {"a": "b"} and job["user"] == "u"
    assert job["expires_at"] > time.time()
    requested = (await api.http.get(job["links"]["events"])).json()["data"][0]
    assert requested["type"] == "job.requested" and requested["data"]["seed"] == job["seed"]


async def test_drawn_seeds_differ_and_given_ones_are_kept(api):
    drawn = {(await api.submit(seed=None))["seed"] for _ in range(5)}
    assert len(drawn) == 5
    assert (await api.submit(seed=(1 << 63) - 1))["seed"] == (1 << 63) - 1


async def test_status_follows_the_log(api):
    job = await api.submit()
    player, url = api.player(job), job["links"]["self"]
    player.admit(5)
    talking = (await api.http.get(url)).json()
    assert talking["status"] == "talking" and talking["queue_position"] is None
    assert talking["timings"]["first_audio_s"] is None
    player.sound(2)
    sounding = (await api.http.get(url)).json()
    assert (sounding["status"], sounding["frames"], sounding["audio_seconds"]) == ("sounding", 200, 0.25)
    assert sounding["timings"]["first_audio_s"] >= 0
    player.sound(1, last=True)
    player.complete()
    done = (await api.http.get(url)).json()
    assert (done["status"], done["reason"], done["samples"]) == ("completed", "stop", 12_000)
    assert done["expires_at"] == pytest.approx(done["timings"]["ended_at"] + 60)


async def test_failed_jobs_say_why(api):
    job = await api.submit()
    api.player(job).fail(retryable=True)
    failed = (await api.http.get(job["links"]["self"])).json()
    assert failed["status"] == "failed"
    assert failed["error"] == {"code": "no_frames", "message": "The song has no frames.", "retryable": True}


async def test_queue_positions_count_those_before(api):
    first, second, third = [await api.submit() for _ in range(3)]
    assert [job["queue_position"] for job in (first, second, third)] == [1, 2, 3]
    client = api.broker.client()
    stream = keys.requests("hum", "anonymous")
    client.xgroup_create(stream, "talkers", id="0")
    client.xreadgroup("talkers", "player", {stream: ">"}, count=1)
    positions = [(await api.http.get(job["links"]["self"])).json()["queue_position"] for job in (first, second, third)]
    assert positions == [None, 1, 2]


@pytest.fixture
def held(monkeypatch) -> asyncio.Event:
    """Set when a request has begun to wait for its job to change."""
    begun, changed = asyncio.Event(), jobs._changed

    async def noted(*args):
        begun.set()
        return await changed(*args)

    monkeypatch.setattr(jobs, "_changed", noted)
    return begun


async def test_wait_holds_until_the_job_changes(api, held):
    job = await api.submit()
    waiting = asyncio.create_task(api.http.get(job["links"]["self"], params={"wait": 60}))
    await asyncio.wait_for(held.wait(), PATIENCE_S)
    await asyncio.sleep(0.3)
    assert not waiting.done()
    began = time.monotonic()
    api.player(job).admit(5)
    assert (await waiting).json()["status"] == "talking"
    assert time.monotonic() - began < 30


async def test_wait_ends_when_time_is_out_or_nothing_can_change(api):
    job = await api.submit()
    began = time.monotonic()
    assert (await api.http.get(job["links"]["self"], params={"wait": 0.4})).json()["status"] == "queued"
    assert time.monotonic() - began > 0.35
    api.player(job).play(5, 1)
    began = time.monotonic()
    assert (await api.http.get(job["links"]["self"], params={"wait": 60})).json()["status"] == "completed"
    assert time.monotonic() - began < 30


async def test_a_waiting_client_is_answered_when_the_api_stops(api, held):
    job = await api.submit()
    waiting = asyncio.create_task(api.http.get(job["links"]["self"], params={"wait": 60}))
    await asyncio.wait_for(held.wait(), PATIENCE_S)
    began = time.monotonic()
    api.server.should_exit = True
    answer = await waiting
    assert (answer.status_code, answer.json()["status"]) == (200, "queued")
    assert time.monotonic() - began < 30


async def test_a_waiting_client_that_leaves_is_let_go(redis_api):
    job, client = await redis_api.submit(), redis_api.broker.client()
    waiting = [asyncio.create_task(redis_api.http.get(job["links"]["self"], params={"wait": 60})) for _ in range(5)]

    async def blocked(count: int):
        return client.info("clients")["blocked_clients"] == count

    await until(lambda: blocked(5))
    began = time.monotonic()
    for task in waiting:
        task.cancel()
    await until(lambda: blocked(0))
    assert time.monotonic() - began < 30


async def test_an_idempotency_key_gives_one_job(api):
    body = {"model": "hum", "input": "la"}
    key = {"Idempotency-Key": "k-1"}
    first = await api.http.post("/v1/jobs", json=body, headers=key)
    second = await api.http.post("/v1/jobs", json=body, headers=key)
    assert (first.status_code, second.status_code) == (202, 200)
    assert first.json()["id"] == second.json()["id"] and first.json()["seed"] == second.json()["seed"]
    other = await api.http.post("/v1/jobs", json=body | {"input": "lo"}, headers=key)
    assert other.status_code == 422 and other.json()["error"]["code"] == "idempotency_key_reused"
    assert api.broker.client().zcard(keys.LIVE) == 1


async def test_over_the_bounded_queue_comes_429_with_retry_after(broker):
    from producer.submit import Limits

    async with serving(broker, limits=Limits(max_jobs=2, ttl_s=60)) as api:
        jobs = [await api.submit() for _ in range(2)]
        refused = await api.http.post("/v1/jobs", json={"model": "hum", "input": "la"})
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "queue_full"
        await api.http.delete(jobs[0]["links"]["cancel"])
        await api.submit()


async def test_a_job_larger_than_the_whole_budget_is_refused_for_good(redis_api):
    from producer.submit import Limits

    async with serving(redis_api.broker, limits=Limits(max_bytes=500_000, ttl_s=60)) as api:
        refused = await api.http.post("/v1/jobs", json={"model": "hum", "input": "la"})
        assert refused.status_code == 400 and "retry-after" not in refused.headers
        error = refused.json()["error"]
        assert (error["code"], error["param"]) == ("job_too_large", "max_new_tokens")
        assert "--max-bytes" in error["message"]


async def test_cancel_ends_a_job_once_and_leaves_final_ones(api):
    job = await api.submit()
    cancelled = (await api.http.delete(job["links"]["cancel"])).json()
    assert (cancelled["status"], cancelled["cancelled_by"]) == ("cancelled", "client")
    assert (await api.http.delete(job["links"]["cancel"])).json()["status"] == "cancelled"
    events = (await api.http.get(job["links"]["events"])).json()["data"]
    assert [event["type"] for event in events] == ["job.requested", "job.cancelled"]
    done = await api.played(1)
    assert (await api.http.delete(done["links"]["cancel"])).json()["status"] == "completed"


async def test_purge_forgets(api):
    job = await api.played(1)
    answer = await api.http.delete(job["links"]["self"], params={"purge": True})
    assert answer.json() == {"id": job["id"], "object": "job.deleted", "deleted": True}
    assert (await api.http.get(job["links"]["self"])).status_code == 410
    assert not api.broker.client().exists(*keys.job_keys(job["id"]))
    assert (await api.http.get("/v1/jobs")).json()["data"] == []


async def test_gone_is_410_and_never_was_is_404(api):
    job = await api.submit()
    api.player(job).expire()
    for path in ("", "/events", "/stream", "/audio"):
        answer = await api.http.get(f"/v1/jobs/{job['id']}{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (410, "job_expired"), path
        for never in ("job_" + "a" * 32, "nonsense", "job_é"):
            answer = await api.http.get(f"/v1/jobs/{never}{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "job_not_found"), (never, path)
    assert (await api.http.delete(f"/v1/jobs/{job['id']}")).status_code == 410


async def test_lists_are_filtered_and_paged_without_gap_or_repeat(api):
    jobs = [await api.submit() for _ in range(7)]
    for job in jobs[:3]:
        api.player(job).play(5, 1)
    api.player(jobs[3]).expire()
    # Jobs of one millisecond must not be lost between pages.
    api.broker.client().zadd(keys.jobs("anonymous"), {job["id"]: 1000 for job in jobs})
    seen, cursor = [], None
    while True:
        params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await api.http.get("/v1/jobs", params=params)).json()
        seen += [job["id"] for job in page["data"]]
        cursor = page["next_cursor"]
        if not cursor:
            break
    assert sorted(seen) == sorted(job["id"] for job in jobs if job is not jobs[3])
    done = (await api.http.get("/v1/jobs", params={"status": "completed"})).json()["data"]
    assert {job["id"] for job in done} == {job["id"] for job in jobs[:3]}
    assert (await api.http.get("/v1/jobs", params={"model": "other"})).json()["data"] == []
    assert (await api.http.get("/v1/jobs", params={"cursor": "???"})).status_code == 400
    assert (await api.http.get("/v1/jobs", params={"status": "odd"})).json()["error"]["param"] == "status"


async def test_a_full_last_page_has_no_more(redis_api):
    jobs = [await redis_api.submit() for _ in range(4)]
    api = redis_api.http
    first = (await api.get("/v1/jobs", params={"limit": 2})).json()
    assert first["has_more"] is True
    last = (await api.get("/v1/jobs", params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert [job["id"] for job in last["data"]] == [job["id"] for job in reversed(jobs[:2])]
    assert (last["has_more"], last["next_cursor"]) == (False, None)


async def test_a_log_that_cannot_be_read_hides_no_other_job(api):
    old, new, lost, other = [await api.submit() for _ in range(4)]
    client = api.broker.client()
    newer = unpack(client.xrange(keys.log(new["id"]))[0][1][b"e"]) | {"v": "99.0", "seq": 2}
    client.xadd(keys.log(new["id"]), {"e": pack(newer)}, id="2-0")
    client.xadd(keys.log(old["id"]), {"e": pack(newer | {"v": "1.0", "seq": 7})}, id="7-0")
    api.player(lost).lose_request()
    listed = {job["id"]: job for job in (await api.http.get("/v1/jobs")).json()["data"]}
    assert listed[other["id"]]["status"] == "queued"
    for job in (old, new, lost):
        shown = listed[job["id"]]
        assert shown["status"] is None and shown["error"]["code"] == "log_unreadable"
        assert "pgrade songline" in shown["error"]["message"] and "purge" in shown["error"]["message"]
        assert shown["timings"]["requested_at"] == job["timings"]["requested_at"]
        answer = await api.http.get(job["links"]["self"])
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "log_unreadable"
        assert (await api.http.delete(job["links"]["self"], params={"purge": True})).json()["deleted"] is True
    listed = (await api.http.get("/v1/jobs")).json()["data"]
    assert [job["id"] for job in listed] == [other["id"]]


async def test_the_log_shows_codes_as_lists(api):
    job = await api.submit()
    player = api.player(job)
    player.admit(5)
    player.sound(1)
    events = (await api.http.get(job["links"]["events"])).json()["data"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    codes = next(event for event in events if event["type"] == "span.window")["data"]["codes"]
    assert codes["dtype"] == "int16" and codes["shape"] == [101, 8] and codes["values"][0] == [0] * 8
    later = (await api.http.get(job["links"]["events"], params={"after": 3})).json()["data"]
    assert later == events[3:]


async def test_the_log_is_followed_as_an_event_stream(api):
    job = await api.submit()
    player = api.player(job)
    types: list[str] = []

    async def follow(after: int) -> None:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        async with api.http.stream("GET", job["links"]["events"], headers=headers) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    types.append(line.removeprefix("event: "))

    following = asyncio.create_task(follow(1))
    await asyncio.to_thread(player.play, 5, 1)
    await asyncio.wait_for(following, PATIENCE_S)
    assert types == ["job.admitted", "job.admitted", "span.terminal", "audio.chunk", "job.completed"]
    as_json = {"Accept": "application/json, text/event-stream;q=0.5"}
    assert (await api.http.get(job["links"]["events"], headers=as_json)).json()["object"] == "list"
    has_all = {"Accept": "text/event-stream", "Last-Event-ID": "6"}
    assert (await api.http.get(job["links"]["events"], headers=has_all)).status_code == 204


async def test_traceparent_travels_and_malformed_ones_are_ignored(api):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = {"model": "hum", "input": "la"}
    answer = await api.http.post("/v1/jobs", json=body, headers={"traceparent": trace})
    assert answer.headers["traceparent"] == answer.json()["traceparent"] == trace
    events = (await api.http.get(answer.json()["links"]["events"])).json()["data"]
    assert events[0]["data"]["traceparent"] == trace
    for bad in ("00-" + "0" * 32 + "-b7ad6b7169203331-01", "ff" + trace[2:], trace.upper(), trace + "-x", "nonsense"):
        answer = await api.http.post("/v1/jobs", json=body, headers={"traceparent": bad})
        assert answer.status_code == 202 and answer.json()["traceparent"] is None, bad
    newer = await api.http.post("/v1/jobs", json=body, headers={"traceparent": "01" + trace[2:] + "-more"})
    assert newer.json()["traceparent"] == trace


async def test_each_owner_sees_only_its_own(broker):
    async with serving(broker, api_keys=("anna:key-a", "key-b")) as api:
        anna, other = ({"Authorization": f"Bearer {key}"} for key in ("key-a", "key-b"))
        job = (await api.http.post("/v1/jobs", json={"model": "hum", "input": "la"}, headers=anna)).json()
        assert (await api.http.get(job["links"]["self"], headers=anna)).status_code == 200
        for verb, path in (("GET", ""), ("GET", "/events"), ("GET", "/stream"), ("GET", "/audio"), ("DELETE", "")):
            answer = await api.http.request(verb, f"/v1/jobs/{job['id']}{path}", headers=other)
            assert answer.status_code == 404, (verb, path)
        assert (await api.http.get("/v1/jobs", headers=other)).json()["data"] == []
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic key-a"}):
            answer = await api.http.get("/v1/jobs", headers=headers)
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["type"] == "authentication_error"


async def test_live_jobs_final_jobs_and_first_audio_are_counted(api):
    job = await api.submit()
    assert "songline_live_jobs 1.0" in (await api.http.get("/metrics")).text
    assert 'songline_queue_depth{model="hum"} 1.0' in (await api.http.get("/metrics")).text
    api.player(job).play(5, 1)
    await api.http.post("/v1/jobs", json={"model": "hum", "input": "la", "seed": -1})
    await api.http.post("/v1/jobs", json={"model": "hum", "input": "la", "made_up_by_the_client": 1})

    async def counted():
        text = (await api.http.get("/metrics")).text
        return text if 'songline_jobs_total{model="hum",status="completed"} 1.0' in text else None

    text = await until(counted)
    assert 'songline_submissions_total{model="hum",route="jobs"} 1.0' in text
    assert 'songline_refusals_total{code="invalid_value",field="seed"} 1.0' in text
    assert 'songline_refusals_total{code="invalid_value",field="other"} 1.0' in text
    assert 'songline_first_audio_seconds_count{model="hum"} 1.0' in text
    assert "songline_live_jobs 0.0" in text


async def test_a_job_that_the_guard_against_loops_ended_is_counted(api):
    for looped in (True, False):
        player = api.player(await api.submit())
        player.looped = looped
        player.play(5, 1)

    async def counted():
        text = (await api.http.get("/metrics")).text
        return text if 'songline_jobs_total{model="hum",status="completed"} 2.0' in text else None

    assert 'songline_loops_total{model="hum"} 1.0' in await until(counted)


async def test_a_job_whose_request_is_lost_is_said_not_to_be_counted(redis_api, caplog):
    job = await redis_api.submit()
    player = redis_api.player(job)
    player.lose_request()
    player.fail()
    await until(lambda: job["id"] not in redis_api.service.accepted)
    [line] = [record.getMessage() for record in caplog.records if "not counted" in record.getMessage()]
    assert job["id"] in line


async def test_counting_goes_on_after_an_error(redis_api):
    service, job, failed = redis_api.service, await redis_api.submit(), asyncio.Event()
    client = service.client

    def breaks():
        service.client = client
        failed.set()
        raise RuntimeError("once")

    service.client = breaks
    await asyncio.wait_for(failed.wait(), PATIENCE_S)
    await asyncio.to_thread(redis_api.player(job).play, 5, 1)

    async def counted():
        return 'songline_jobs_total{model="hum",status="completed"} 1.0' in (await redis_api.http.get("/metrics")).text

    await until(counted)


async def test_a_queue_position_counts_other_owners_in_turn(broker):
    async with serving(broker, api_keys=("anna:key-a", "bert:key-b")) as api:

        async def submit(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            answer = await api.http.post("/v1/jobs", json={"model": "hum", "input": "la"}, headers=headers)
            return answer.json()["queue_position"]

        assert [await submit("key-a") for _ in range(4)] == [1, 2, 3, 4]
        # Bert's first job waits for one of Anna's at most, and his second for two.
        assert [await submit("key-b") for _ in range(2)] == [2, 4]
