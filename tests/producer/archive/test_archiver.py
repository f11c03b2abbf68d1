"""Nothing is lost between a job's end and its archive, whoever dies; doing it again changes nothing."""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import replace

import pytest
import redis

from broker_schemas import keys, log
from broker_schemas.heartbeat import Heartbeat, broker_ms, read_heartbeats
from compose.cli import main
from producer.archive import archiver as archiving
from producer.archive.settings import ArchiveSettings
from producer.archive.store import Store
from tests.api.conftest import serving
from tests.producer.archive.conftest import NEVER_S, archiver, caught_up, facts, files, runs
from tests.waiting import until


def waiting(broker) -> list[str]:
    """Jobs that no archive has."""
    return [job.decode() for job in broker.client().zrange(keys.UNARCHIVED, 0, -1)]


class Flaky(Store):
    """A store that fails where `fails` says so, and keeps what it was asked to write."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.fails = lambda name: False
        self.asked: list[str] = []

    def write(self, name: str, content: bytes) -> None:
        self.asked.append(name)
        if self.fails(name):
            raise OSError("the disk is full")
        super().write(name, content)


# --- what is waiting ------------------------------------------------------------------------------------------------


def test_a_full_broker_can_be_told_that_a_job_is_archived(real_broker):
    client = real_broker.client()
    run = log.Scripts(client)
    run(log.archive_again(["job_a"]))
    claimed, *_ = run(log.claim_unarchived(ttl_ms=60_000, most=1))
    try:
        client.config_set("maxmemory", 1)
        assert run(log.end_archiving("job_a", claimed=claimed)) == [1]
    finally:
        client.config_set("maxmemory", 0)
    assert waiting(real_broker) == [] and client.hget(keys.ARCHIVED, "archived") == b"1"


async def test_a_job_waits_from_its_end_until_it_is_archived(broker, folder):
    async with serving(broker) as api:
        job = await api.submit()
        assert waiting(broker) == []
        api.player(job).play(5, 1)
        assert waiting(broker) == [job["id"]]
        assert "songline_unarchived_jobs 1.0" in (await api.http.get("/metrics")).text
        await runs(archiver(broker, folder), lambda: not waiting(broker))
        assert len(files(folder)) == 2
        api.player(job)._retire()  # as a worker does that did not hear the reply
        assert waiting(broker) == []
        assert "songline_unarchived_jobs 0.0" in (await api.http.get("/metrics")).text


async def test_a_purged_job_is_not_archived(real_broker, folder):
    async with serving(real_broker) as api:
        job = await api.played(1)
        await api.http.delete(job["links"]["self"], params={"purge": True})
        assert waiting(real_broker) == []
        assert await caught_up(real_broker, folder) == (0, 0, 0)
    assert not files(folder)


async def test_a_job_that_lives_again_waits_no_more(real_broker):
    async with serving(real_broker) as api:
        job = await api.played(1)
        await api.service.run(log.hold(job["id"], bytes_=1, owner="anonymous", model="hum"))
        assert waiting(real_broker) == []


async def test_a_job_that_is_gone_waits_no_more(real_broker, folder, caplog):
    async with serving(real_broker) as api:
        job = await api.played(1)
        api.player(job).expire()
        await runs(archiver(real_broker, folder), lambda: not waiting(real_broker))
    assert not files(folder)
    assert any(f"{job['id']} is gone" in record.getMessage() for record in caplog.records)


async def test_one_that_starts_late_finds_what_ended_before(real_broker, folder):
    async with serving(real_broker) as api:
        jobs = [await api.played(1) for _ in range(5)]
    await runs(archiver(real_broker, folder), lambda: not waiting(real_broker))
    assert {facts(folder, job)["id"] for job in jobs} == {job["id"] for job in jobs}


# --- again, and by others -------------------------------------------------------------------------------------------


async def test_doing_it_again_writes_nothing(broker, folder):
    async with serving(broker) as api:
        job = await api.played(2)
        await caught_up(broker, folder)
        before = files(folder)
        api.player(job).free_rows()  # comes after the end
        store = Flaky(str(folder))
        assert await caught_up(broker, store) == (0, 1, 0)
        assert await caught_up(broker, store, format="flac") == (0, 1, 0)
    assert store.asked == [] and files(folder) == before


async def test_two_that_have_one_job_write_the_same(real_broker, folder, tmp_path):
    async with serving(real_broker) as api:
        job = await api.played(2)
        await caught_up(real_broker, folder)
        api.player(job).free_rows()
        await caught_up(real_broker, tmp_path / "other")
    assert files(folder) == files(tmp_path / "other")


@pytest.mark.parametrize("suffix", [".wav", ".json"])
async def test_a_failure_in_between_leaves_nothing_that_could_be_taken_for_the_whole(real_broker, folder, suffix):
    async with serving(real_broker) as api:
        job = await api.played(2)
        store = Flaky(str(folder))
        store.fails = lambda name: name.endswith(suffix)
        assert await caught_up(real_broker, store) == (0, 0, 1)
        assert not list(folder.rglob("*.json")) and waiting(real_broker) == [job["id"]]
        assert await caught_up(real_broker, folder) == (0, 0, 0), "it has its pause yet"
        real_broker.client().zadd(keys.UNARCHIVED, {job["id"]: 1})
        await runs(archiver(real_broker, folder), lambda: not waiting(real_broker))
    assert len(files(folder)) == 2 and facts(folder, job)["sound"]["samples"] == 8000


async def test_facts_that_are_no_facts_are_written_anew(real_broker, folder):
    async with serving(real_broker) as api:
        job = await api.played(1)
        await caught_up(real_broker, folder)
        [path] = folder.rglob("*.json")
        whole = path.read_bytes()
        for damage in (whole[:100], b"", b"[]", b"{}"):
            path.write_bytes(damage)
            assert await caught_up(real_broker, folder) == (1, 0, 0)
            assert path.read_bytes() == whole, job


async def test_who_dies_with_a_claim_is_followed_by_another_once_it_has_lapsed(real_broker, folder):
    async with serving(real_broker) as api:
        job = await api.played(1)
        claimed, *jobs = await api.service.run(log.claim_unarchived(ttl_ms=500, most=10))
        assert jobs == [job["id"]]
        await runs(archiver(real_broker, folder), lambda: not waiting(real_broker))
        seconds, micros = real_broker.client().time()
        assert seconds * 1000 + micros // 1000 >= claimed


async def test_who_wakes_after_its_claim_changes_nothing(broker):
    async with serving(broker) as api:
        job, run = (await api.played(1))["id"], api.service.run
        first, *_ = await run(log.claim_unarchived(ttl_ms=1, most=10))

        async def claimed_again():
            claimed, *jobs = await run(log.claim_unarchived(ttl_ms=60_000, most=10))
            return jobs and claimed

        second = await until(claimed_again)
        assert await run(log.end_archiving(job, claimed=first)) == [0]
        assert await run(log.put_off_archiving(job, claimed=first, pause_ms=0)) == [0]
        [renewed] = await run(log.put_off_archiving(job, claimed=second, pause_ms=120_000))
        assert renewed > second and waiting(broker) == [job]
        assert await run(log.archive_again([job])) == [0], "a claim stays"
        assert await run(log.end_archiving(job, claimed=renewed)) == [1]
        assert await run(log.end_archiving(job, claimed=renewed)) == [0]
        assert await run(log.put_off_archiving(job, claimed=renewed, pause_ms=0)) == [0]
        assert waiting(broker) == []


async def test_it_takes_no_more_than_it_can_have_in_hand(real_broker, folder):
    async with serving(real_broker) as api:
        for _ in range(3):
            await api.played(1)
    store, let_go = Flaky(str(folder)), threading.Event()
    store.fails = lambda name: not let_go.wait()
    one = archiver(real_broker, store, at_once=2)
    try:
        assert one.turn() and not one.turn()
        claimed = real_broker.client().zcount(keys.UNARCHIVED, real_broker.client().time()[0] * 1000 + 60_000, "+inf")
        assert claimed == 2
    finally:
        let_go.set()
    await runs(one, lambda: not waiting(real_broker))
    assert one.tally.written == 3


async def test_a_claim_is_renewed_while_the_store_works_but_not_for_ever(real_broker, folder, monkeypatch, caplog):
    async with serving(real_broker) as api:
        job = (await api.played(1))["id"]
    store, let_go, late_s = Flaky(str(folder)), threading.Event(), [0.0]
    store.fails = lambda name: not let_go.wait()
    now = archiving.time.monotonic
    monkeypatch.setattr(archiving.time, "monotonic", lambda: now() + late_s[0])
    one = archiver(real_broker, store, claim_s=NEVER_S, patience_s=10 * NEVER_S)

    def until_ms() -> float:
        return real_broker.client().zscore(keys.UNARCHIVED, job)

    try:
        one.turn()
        claimed = until_ms()
        one.turn()
        assert until_ms() == claimed, "there was time yet"
        for late_s[0] in (NEVER_S, 2 * NEVER_S):
            before = until_ms()
            one.turn()
            assert until_ms() > before
        assert not one.tally.failed and not one.stuck
        late_s[0] = 11 * NEVER_S
        one.turn()
        before = until_ms()
        late_s[0] = 12 * NEVER_S
        one.turn()
        assert until_ms() == before and one.tally.failed == 1
        assert not one.stuck, "it can have another in hand"
        assert sum(f"{job} is left to others" in record.getMessage() for record in caplog.records) == 1
    finally:
        let_go.set()
    await runs(one, lambda: not waiting(real_broker))


# --- what is told of it ---------------------------------------------------------------------------------------------


def beats(broker) -> list[Heartbeat]:
    return read_heartbeats(broker.client().hgetall(keys.WORKERS))


async def test_an_archiver_says_what_it_has_in_hand_and_did_until_it_is_stopped(broker, folder):
    async with serving(broker) as api:
        for _ in range(3):
            await api.played(1)
    store, failed, let_go, seen = Flaky(str(folder)), threading.Event(), threading.Event(), []

    def hold(name: str) -> bool:
        if not failed.is_set():
            failed.set()
            return True
        return not let_go.wait()

    def tells() -> bool:
        seen.extend(beats(broker))
        if seen and seen[-1].held == 2 and seen[-1].counts["failed"] == 1:
            let_go.set()
        return seen and seen[-1].counts["archived"] == 3

    store.fails = hold
    one = archiver(broker, store, at_once=2, first_pause_s=0.01)
    await runs(one, tells)
    last = seen[-1]
    assert (last.worker, last.role, last.slots, last.state) == (one.name, keys.ARCHIVE, 2, "working")
    assert last.counts == {"archived": 3, "there": 0, "failed": 1} and last.alive(broker_ms(broker.client().time()))
    assert any(beat.oldest_s > 0 for beat in seen)
    assert beats(broker) == [], "who is stopped is not counted on"


async def test_it_is_told_what_waits_and_since_when_and_what_became_of_it(broker, folder):
    async def told() -> dict[str, float]:
        shown = (await api.http.get("/v1/pipeline")).json()["archive"]
        text = (await api.http.get("/metrics")).text
        assert f"songline_unarchived_jobs {shown['waiting']:.1f}" in text
        [metric] = re.findall(r"^songline_unarchived_oldest_seconds (.+)$", text, re.MULTILINE)
        assert float(metric) >= shown["oldest_s"]
        return shown

    nothing = {"waiting": 0, "oldest_s": 0, "archived": 0, "failed": 0}
    async with serving(broker) as api:
        assert await told() == nothing
        jobs = [(await api.played(1))["id"] for _ in range(3)]
        since = broker.client().zscore(keys.UNARCHIVED_SINCE, jobs[0])
        broker.client().zadd(keys.UNARCHIVED_SINCE, {jobs[0]: since - 90_000})
        store = Flaky(str(folder))
        store.fails = lambda name: jobs[0] in name
        await runs(archiver(broker, store, first_pause_s=NEVER_S, longest_pause_s=NEVER_S), lambda: failures(broker))
        waits = await told()
        assert waits["failed"] == 1 and waits["waiting"] + waits["archived"] == 3
        assert waits["oldest_s"] >= 90, "a job that is put off waits on"

        broker.client().zadd(keys.UNARCHIVED, {jobs[0]: 1})
        await runs(archiver(broker, folder), lambda: not waiting(broker))
        assert await told() == nothing | {"archived": 3, "failed": 1}
        await caught_up(broker, folder)
        assert await told() == nothing | {"archived": 3, "failed": 1}, "those were there"
        await api.service.run(log.archive_again(jobs[:1]))
        assert (await told())["waiting"] == broker.client().zcard(keys.UNARCHIVED_SINCE) == 1


def failures(broker) -> bytes | None:
    return broker.client().hget(keys.ARCHIVED, "failed")


async def test_nothing_is_told_of_a_job_that_is_to_be_archived_no_more(real_broker):
    client = real_broker.client()
    async with serving(real_broker) as api:
        purged, revived = await api.played(1), await api.played(1)
        assert client.zcard(keys.UNARCHIVED_SINCE) == 2
        await api.http.delete(purged["links"]["self"], params={"purge": True})
        await api.service.run(log.hold(revived["id"], bytes_=1, owner="anonymous", model="hum"))
    assert not client.exists(keys.UNARCHIVED_SINCE)


@pytest.mark.parametrize("ends", ["it answers", "it is stopped"])
async def test_one_whose_store_answers_no_more_is_unhealthy(real_broker, redis_server, folder, capsys, ends):
    def health() -> int:
        return main(["health", "--role", "archive", "--broker", redis_server.url])

    assert health() == 1 and "no archive of this host" in capsys.readouterr().err
    async with serving(real_broker) as api:
        jobs = [await api.played(1) for _ in range(2)]
    store, let_go, told, stop = Flaky(str(folder)), threading.Event(), threading.Event(), threading.Event()
    store.fails = lambda name: not let_go.wait()
    stuck = archiver(real_broker, store, at_once=2, on_stuck=told.set)
    running = asyncio.create_task(asyncio.to_thread(stuck.run, stop))
    try:
        await until(lambda: any(beat.held == 2 for beat in beats(real_broker)))
        assert health() == 0 and not told.is_set()
        stuck.settings = replace(stuck.settings, claim_s=0.01, patience_s=0.01)
        await until(lambda: health() == 1)
        assert "start it anew" in capsys.readouterr().err and told.is_set()
        assert [beat.state for beat in beats(real_broker)] == ["stuck"]
        assert int(failures(real_broker)) == stuck.tally.failed == 2
        if ends == "it answers":
            let_go.set()
            await until(lambda: health() == 0)
        stop.set()
        await running
    finally:
        let_go.set()
        stop.set()
        await running
    await runs(archiver(real_broker, folder, claim_s=1.0), lambda: not waiting(real_broker))
    assert {facts(folder, job)["id"] for job in jobs} == {job["id"] for job in jobs}


async def test_who_archives_what_is_there_waits_for_no_store_for_ever(real_broker, folder):
    async with serving(real_broker) as api:
        await api.played(1)
    store, let_go = Flaky(str(folder)), threading.Event()
    store.fails = lambda name: not let_go.wait()
    try:
        assert await caught_up(real_broker, store, at_once=1, patience_s=0.01, claim_s=0.01) == (0, 0, 1)
    finally:
        let_go.set()


# --- when something is wrong ----------------------------------------------------------------------------------------


async def test_a_store_that_is_away_is_waited_for_longer_and_longer(real_broker, folder, caplog):
    async with serving(real_broker) as api:
        await api.played(1)
    store = Flaky(str(folder))
    store.fails = lambda name: len(store.asked) <= 4
    one = archiver(real_broker, store, first_pause_s=0.01, longest_pause_s=0.04)
    await runs(one, lambda: not waiting(real_broker))
    pauses = [record.args[1] for record in caplog.records if "not archived yet" in record.getMessage()]
    assert pauses == [0.01, 0.02, 0.04, 0.04]
    assert len(files(folder)) == 2


def test_pauses_stay_within_a_jobs_time():
    settings = ArchiveSettings()
    assert settings.first_pause_s < settings.longest_pause_s <= 60 and settings.claim_s < settings.patience_s


async def test_a_job_that_cannot_be_read_keeps_nobody_waiting(real_broker, folder, caplog):
    async with serving(real_broker) as api:
        broken, cut, whole = [await api.played(2) for _ in range(3)]
    client = real_broker.client()
    client.xadd(keys.log(broken["id"]), {"e": b"\xc1"}, id="99-0")
    client.xtrim(keys.log(broken["id"]), maxlen=1, approximate=False)
    client.xdel(keys.audio(cut["id"]), "1-0")
    assert await caught_up(real_broker, folder) == (1, 0, 2)
    assert facts(folder, whole)["status"] == "completed" and len(files(folder)) == 2
    assert sorted(waiting(real_broker)) == sorted([broken["id"], cut["id"]]), "another program may read them"
    told = "".join(record.getMessage() for record in caplog.records)
    assert broken["id"] in told and cut["id"] in told


async def test_a_job_whose_request_is_lost_is_not_archived(real_broker, folder, caplog):
    async with serving(real_broker) as api:
        job = await api.played(2)
        api.player(job).lose_request()
    assert await caught_up(real_broker, folder) == (0, 0, 1)
    assert files(folder) == {} and waiting(real_broker) == [job["id"]]
    assert "does not begin with its request" in caplog.text


async def test_a_broker_that_is_away_is_waited_for(real_broker, folder, monkeypatch):
    async with serving(real_broker) as api:
        await api.played(1)
    one, failures = archiver(real_broker, folder), []
    run = one._run

    def away(call):
        if len(failures) < 3:
            failures.append(call)
            raise redis.ConnectionError("away")
        return run(call)

    one._run = away
    await runs(one, lambda: not waiting(real_broker))
    assert len(failures) == 3 and len(files(folder)) == 2


async def test_who_is_stopped_finishes_what_it_has_in_hand_and_takes_no_more(real_broker, folder):
    async with serving(real_broker) as api:
        for _ in range(2):
            await api.played(1)
    store, began, let_go, stop = Flaky(str(folder)), threading.Event(), threading.Event(), threading.Event()

    def hold(name: str) -> bool:
        began.set()
        return not let_go.wait()

    store.fails = hold
    running = asyncio.create_task(asyncio.to_thread(archiver(real_broker, store, at_once=1).run, stop))
    await until(began.is_set)
    stop.set()
    let_go.set()
    await running
    assert len(files(folder)) == 2 and len(waiting(real_broker)) == 1


async def test_a_store_that_never_answers_does_not_keep_a_process_from_its_end(real_broker, folder):
    """The interpreter waits for every thread that is no daemon."""
    async with serving(real_broker) as api:
        await api.played(1)
    store, let_go, before = Flaky(str(folder)), threading.Event(), set(threading.enumerate())
    store.fails = lambda name: not let_go.wait()
    one = archiver(real_broker, store)
    try:
        one.turn()
        begun = set(threading.enumerate()) - before
        assert begun and all(thread.daemon for thread in begun)
    finally:
        let_go.set()
    await runs(one, lambda: not waiting(real_broker))
