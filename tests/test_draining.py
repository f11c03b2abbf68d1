"""A worker that is drained finishes what it has and takes nothing more; what it does is in its heartbeat."""

from __future__ import annotations

import argparse
import asyncio
import re
import threading

import pytest

from broker_schemas import keys
from broker_schemas.heartbeat import Heartbeat, broker_ms, living
from broker_schemas.job import Status
from compose import workers
from compose.trouble import Trouble
from tests.stand_ins import InstantRunner, acoustic, running, talker
from tests.test_pipeline import listen, submit
from tests.waiting import PATIENCE_S, reach, until


def beats(broker) -> dict[str, Heartbeat]:
    client = broker.client()
    return {beat.worker: beat for beat in living(client.hgetall(keys.WORKERS), broker_ms(client.time()))}


async def test_a_drained_worker_finishes_its_jobs_and_takes_no_more(producer, broker):
    drained = threading.Event()
    runner = InstantRunner()
    runner.before_step = lambda: runner.steps == 100 and drained.wait(PATIENCE_S)
    with running(talker(broker, runner=runner, name="first"), acoustic(broker)):
        job = await submit(producer)
        await reach(producer, job, lambda state: state.status is not Status.QUEUED)
        broker.client().sadd(keys.DRAINING, "first")
        await until(lambda: beats(broker)["first"].state == "draining")
        other = await submit(producer)
        drained.set()
        await listen(producer, job)
        await until(lambda: beats(broker)["first"].state == "drained")
        assert (await producer.jobs.state(other)).status is Status.QUEUED
        with running(talker(broker, name="second")):
            await listen(producer, other)
        third = await submit(producer)
        await asyncio.sleep(0.2)
        assert (await producer.jobs.state(third)).status is Status.QUEUED
        broker.client().srem(keys.DRAINING, "first")
        await listen(producer, third)
        assert beats(broker)["first"].state == "working"
    assert not broker.client().exists(keys.DRAINING)


async def test_a_heartbeat_tells_what_was_done(producer, broker):
    with running(talker(broker, name="talks"), acoustic(broker, name="sounds")):
        job = await submit(producer, frames=430)
        await listen(producer, job)
        state = await producer.jobs.state(job)
        told = await until(lambda: (done := beats(broker)["sounds"].counts)["jobs"] == 1 and done)
        assert (told["windows"], told["samples"]) == (state.chunks, state.samples)
        told = await until(lambda: (done := beats(broker)["talks"].counts)["jobs"] == 1 and done)
        assert told["draws"] > 430 and told["steps"] > 430 and told["takeovers"] == told["failed"] == 0
        assert beats(broker)["talks"].slots == 16


def test_a_newer_worker_s_heartbeat_is_read():
    beat = Heartbeat(worker="w", role="talker", model="m", profile="p", at=10)
    raw = beat.pack()
    assert living({b"w": raw.replace(b"\xa8draining", b"\xa8brewing_", 1), b"x": b"rubbish"}, now_ms=20) == [beat]


def command(broker_url: str, **given) -> argparse.Namespace:
    return argparse.Namespace(broker=broker_url, **given)


async def test_the_operator_s_commands(real_broker, redis_server, capsys):
    redis_url = redis_server.url
    with pytest.raises(Trouble, match="no worker is alive"):
        workers.workers(command(redis_url))
    with running(talker(real_broker, name="first")):
        await until(lambda: beats(real_broker))
        with pytest.raises(Trouble, match="there are: first"):
            workers.drain(command(redis_url, worker="frist"))
        workers.drain(command(redis_url, worker="first"))
        await until(lambda: beats(real_broker)["first"].draining)
        workers.workers(command(redis_url))
        assert "drained" in capsys.readouterr().out
        at = broker_ms(real_broker.client().time())
        archiver = Heartbeat("keeps", keys.ARCHIVE, "", "", at=at, slots=2, counts={"archived": 7, "failed": 0})
        real_broker.client().hset(keys.WORKERS, "keeps", archiver.pack())
        workers.workers(command(redis_url))
        assert re.search(r"^keeps +archive +0/2  working   archived 7$", capsys.readouterr().out, re.MULTILINE)
        with pytest.raises(Trouble, match="keeps is an archiver: stop it"):
            workers.drain(command(redis_url, worker="keeps"))
        with pytest.raises(Trouble, match=r"there are: first$"):
            workers.drain(command(redis_url, worker="kept"))
        workers.undrain(command(redis_url, worker="first"))
        await until(lambda: not beats(real_broker)["first"].draining)
    with pytest.raises(Trouble, match="no worker is alive"):
        workers.workers(command(redis_url))
    assert "keeps" in capsys.readouterr().out
