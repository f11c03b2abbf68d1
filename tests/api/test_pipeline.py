"""What an operator sees of queues and workers."""

from __future__ import annotations

from dataclasses import replace

from broker_schemas import keys
from broker_schemas.heartbeat import Heartbeat, broker_ms


def beat(broker, **changes) -> Heartbeat:
    now_ms = broker_ms(broker.client().time())
    heartbeat = Heartbeat(
        worker="talker-a-1", role="talker", model="hum", profile="abc", at=now_ms, slots=16, held=2, oldest_s=1.5,
        counts={"jobs": 7, "draws": 900},
    )  # fmt: skip
    heartbeat = replace(heartbeat, **changes)
    broker.client().hset(keys.WORKERS, heartbeat.worker, heartbeat.pack())
    return heartbeat


async def test_queues_and_workers(api):
    beat(api.broker)
    beat(api.broker, worker="talker-b-2", draining=True)
    beat(api.broker, worker="talker-c-3", draining=True, held=0)
    beat(api.broker, worker="gone", at=0)
    await api.submit()
    shown = (await api.http.get("/v1/pipeline")).json()
    assert shown["models"] == {"hum": {"queued": 1, "ready": 0}} and shown["live_jobs"] == 1
    assert {each["worker"]: each["state"] for each in shown["workers"]} == {
        "talker-a-1": "working", "talker-b-2": "draining", "talker-c-3": "drained",
    }  # fmt: skip
    first = shown["workers"][0]
    assert (first["slots"], first["held"], first["oldest_s"], first["done"]["jobs"]) == (16, 2, 1.5, 7)


async def test_an_archiver_is_among_them_and_serves_nobody(api):
    beat(api.broker, worker="archive-a-1", role=keys.ARCHIVE, model="", profile="", stuck=True, counts={"failed": 3})
    [shown] = (await api.http.get("/v1/pipeline")).json()["workers"]
    assert (shown["role"], shown["state"], shown["done"]) == ("archive", "stuck", {"failed": 3})
    text = (await api.http.get("/metrics")).text
    assert 'songline_worker_stuck{model="",role="archive",worker="archive-a-1"} 1.0' in text
    assert 'songline_worker_done_total{model="",role="archive",what="failed",worker="archive-a-1"} 3.0' in text
    assert (await api.http.get("/ready")).status_code == 503


async def test_workers_in_the_metrics_and_out_of_them_when_they_are_gone(api):
    beat(api.broker)
    named = 'model="hum",role="talker",worker="talker-a-1"'
    text = (await api.http.get("/metrics")).text

    assert f"songline_worker_jobs_held{{{named}}} 2.0" in text
    assert 'what="draws"' in text and "songline_worker_done_total" in text
    beat(api.broker, at=0)
    assert "talker-a-1" not in (await api.http.get("/metrics")).text
