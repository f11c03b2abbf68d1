"""The bench against a small server whose times and failures are known. It stands in for the api."""

import asyncio
import hashlib
import itertools
import json
import random
import time
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from producer.bench import BadServer, Heard, Listener, Load, Target, arrival_times, run_level, served_model, summary
from producer.bench_table import comparison, same_bytes, table

RATE = 1000  # bytes of PCM a second


class Server:
    """Sings `chunks` pieces of `piece` s, `pause` seconds apart, `at_once` songs at a time; knows who was there."""

    def __init__(self, *, chunks=2, piece=0.1, pause=0.01, at_once=1000, refuse=()):
        self.chunks, self.piece, self.pause, self.refuse = chunks, piece, pause, refuse
        self.places = asyncio.Semaphore(at_once)
        self.now = self.most = 0
        self.came: list[float] = []
        self.app = FastAPI()
        self.app.post("/v1/audio/speech")(self.speech)
        self.app.get("/v1/models")(lambda: {"data": [{"id": "tune", "sample_rate": 250, "channels": 2}]})

    async def speech(self, request: Request):
        body = await request.json()
        self.came.append(time.perf_counter())
        if body["seed"] in self.refuse:
            return JSONResponse({"error": {"message": "no room"}}, 429)
        return StreamingResponse(self.sing(body["seed"]))

    async def sing(self, seed):
        async with self.places:
            self.now += 1
            self.most = max(self.most, self.now)
            for _ in range(self.chunks):
                await asyncio.sleep(self.pause)
                yield random.Random(seed).randbytes(int(RATE * self.piece))
            self.now -= 1


@asynccontextmanager
async def listener(server, **target):
    import uvicorn

    uvicorn_server = uvicorn.Server(uvicorn.Config(server.app, port=0, log_level="error"))
    serving = asyncio.create_task(uvicorn_server.serve())
    while not uvicorn_server.started:
        await asyncio.sleep(0.01)
    url = f"http://127.0.0.1:{uvicorn_server.servers[0].sockets[0].getsockname()[1]}"
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=None) as client:
        yield Listener(Target(url, {"model": "tune"}, **target), client, RATE)
    uvicorn_server.should_exit = True
    await serving


async def test_a_closed_loop_keeps_to_its_concurrency():
    server = Server()
    async with listener(server) as ears:
        outcomes, _ = await run_level(ears, Load(9, concurrency=3))
    assert [outcome.seed for outcome in outcomes] == list(range(9))
    assert all(outcome.ok for outcome in outcomes)
    assert server.most == 3


async def test_an_open_loop_does_not_wait_for_a_slow_server():
    server = Server(pause=0.2, at_once=1)
    load = Load(10, rate=50)
    async with listener(server) as ears:
        outcomes, wall = await run_level(ears, load)
    due = arrival_times(50, 10)
    assert wall > 10 * 2 * 0.2 > 4 * due[-1]
    assert server.came[-1] - server.came[0] < wall / 2  # all are there long before the first half is sung
    # the last request waited for nine others, and its time says so
    assert max(outcome.took for outcome in outcomes) > 10 * 0.4 - due[-1]


def test_arrivals_are_independent_and_at_the_given_rate():
    times = arrival_times(20, 4000)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[0] == 0
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 20, rel=0.05)
    assert sum(gap > 1 / 20 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)  # exponential: 1/e


async def test_figures_of_a_level():
    server = Server(chunks=3, piece=2, pause=0.5, refuse=(2,))
    load = Load(4, concurrency=2)
    async with listener(server) as ears:
        outcomes, wall = await run_level(ears, load)
    level = summary(load, outcomes, wall)
    assert (level["ok"], level["failed"]) == (3, 1)
    assert level["errors"] == {"429: no room": 1}
    assert level["audio_s"] == pytest.approx(3 * 6)
    assert level["audio_s_per_s"] == pytest.approx(18 / wall)
    assert 0.5 <= level["first_audio_s"]["p50"] < level["end_to_end_s"]["p50"] > 1.5
    assert 0.4 < level["longest_gap_s"] < level["end_to_end_s"]["p99"]
    assert level["underrun"] == {"total_s": 0, "p95_s": 0, "share": 0}
    song = hashlib.sha256(random.Random(0).randbytes(2 * RATE) * 3).hexdigest()
    assert level["results"][0]["sha256"] == song
    assert level["results"][2]["sha256"] is None
    assert json.loads(json.dumps(level, allow_nan=False)) == level


def test_failures_that_differ_by_their_job_alone_are_counted_together():
    jobs = ("job_" + "a" * 32, "job_" + "b" * 32)
    outcomes = [Heard(seed, 0, (), 1, None, f"Job {job} was cancelled") for seed, job in enumerate(jobs)]
    level = summary(Load(2, concurrency=1), outcomes, 1)
    assert level["errors"] == {"Job job_… was cancelled": 2}
    assert [result["error"] for result in level["results"]] == [outcome.error for outcome in outcomes]


async def test_streams_that_run_dry_are_counted():
    server = Server(chunks=3, piece=0.5, pause=1)
    load = Load(2, concurrency=2)
    async with listener(server) as ears:
        outcomes, wall = await run_level(ears, load)
    level = summary(load, outcomes, wall)
    assert level["underrun"]["share"] == 1
    assert 1 < level["underrun"]["total_s"] < 2 * wall


async def test_a_level_that_failed_whole_still_reports():
    load = Load(2, concurrency=1)
    async with listener(Server(refuse=(0, 1))) as ears:
        level = summary(load, *await run_level(ears, load))
    assert level["failed"] == 2
    assert level["first_audio_s"] == {"p50": None, "p95": None, "p99": None}
    assert "-" in table([level])


async def test_a_request_that_takes_too_long_fails():
    async with listener(Server(pause=5), timeout_s=0.1) as ears:
        outcome = await ears.hear(0)
    assert outcome.error == "not done within 0.1 s"


async def test_a_model_that_is_not_served_is_named():
    async with listener(Server()) as ears:
        assert (await served_model(ears._client, None))["id"] == "tune"
        with pytest.raises(BadServer, match="no model 'song'; it serves: tune"):
            await served_model(ears._client, "song")


async def test_no_server_says_what_to_do():
    async with httpx.AsyncClient(base_url="http://127.0.0.1:9") as client:
        with pytest.raises(BadServer, match="songline up"):
            await served_model(client, None)


def level(sha256, first=1.0, concurrency=1):
    return {
        "load": "closed", "concurrency": concurrency, "rate": None, "ok": 1, "failed": 0, "audio_s_per_s": 2.0,
        "first_audio_s": {"p50": first, "p95": first, "p99": first}, "longest_gap_s": 0.5,
        "end_to_end_s": {"p50": 3.0, "p95": 3.0, "p99": 3.0},
        "underrun": {"total_s": 0.0, "p95_s": 0.0, "share": 0.0}, "results": [{"seed": 7, "sha256": sha256}],
    }  # fmt: skip


def test_a_comparison_shows_change_and_bytes():
    before = {"body": {"input": "la"}, "levels": [level("aa")]}
    slower = comparison({"body": {"input": "la"}, "levels": [level("aa", first=1.5)]}, before)
    assert "1.000 → 1.500 (+50%)" in slower
    assert "one sha256 for each of 1 seeds" in slower
    assert "bytes DIFFER for 1 of 1 seeds: 7" in comparison({"body": {"input": "la"}, "levels": [level("bb")]}, before)
    assert "not compared" in comparison({"body": {"input": "li"}, "levels": [level("bb")]}, before)
    assert "no level" in comparison({"body": {}, "levels": [level("aa", concurrency=2)]}, before)


def test_bytes_that_differ_between_levels_are_reported():
    assert "DIFFER" in same_bytes([level("aa"), level("bb", concurrency=2)])
    assert "DIFFER" not in same_bytes([level("aa"), level("aa", concurrency=2)])
