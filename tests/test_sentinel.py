"""Redis behind Sentinel: the master dies in the middle of a song, which ends with the bytes that it has alone."""

from __future__ import annotations

import subprocess
import threading

import pytest
import redis

from broker_schemas.connection import SentinelBroker, SentinelUrl, broker_at
from broker_schemas.job import Status
from producer.submit import JobIds, Limits, Producer
from tests.ports import free_port
from tests.redis_server import BINARY, RedisServer
from tests.stand_ins import InstantRunner, acoustic, running, talker
from tests.test_pipeline import listen, sha256, submit
from tests.waiting import PATIENCE_S, reach, until

SERVICE = "songs"
_FRAMES = 430
_HELD_AT = 800  # steps: in the second song, after its first window


def test_a_url_names_sentinels_service_and_credentials():
    stated = SentinelUrl.parse("redis+sentinel://me:p%40ss@one,two:7000/songs/3?sentinel_password=shh")
    assert stated.sentinels == (("one", 26379), ("two", 7000))
    assert (stated.service, stated.server) == ("songs", {"username": "me", "password": "p@ss", "db": 3})
    assert stated.sentinel == {"username": None, "password": "shh"}


@pytest.mark.parametrize("url", ["//one", "//one/", "///songs", "//one/songs/first", "//one/songs?timeout=3"])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(ValueError):
        broker_at(f"redis+sentinel:{url}")


@pytest.fixture
def replicated(tmp_path):
    """A master, its replica, and a sentinel that watches them: (broker, master)."""
    if BINARY is None:
        pytest.skip("needs redis-server")
    for name in ("master", "replica", "sentinel"):
        (tmp_path / name).mkdir()
    master = RedisServer(tmp_path / "master")
    replica = RedisServer(tmp_path / "replica", "--replicaof", "127.0.0.1", str(master.port))
    port, settings = free_port(), tmp_path / "sentinel" / "sentinel.conf"
    settings.write_text(
        f"port {port}\ndir {tmp_path / 'sentinel'}\nsentinel monitor {SERVICE} 127.0.0.1 {master.port} 1\n"
        f"sentinel down-after-milliseconds {SERVICE} 500\nsentinel failover-timeout {SERVICE} 3000\n"
    )
    sentinel = subprocess.Popen(
        [BINARY, str(settings), "--sentinel"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield SentinelBroker(f"redis+sentinel://127.0.0.1:{port}/{SERVICE}/0"), master, replica, port
    sentinel.kill()
    sentinel.wait()
    master.kill()
    replica.kill()


def _has_replica(port: int) -> bool:
    """The sentinel knows it, and that it has all there is."""
    try:
        told = redis.Redis(port=port, decode_responses=True).sentinel_slaves(SERVICE)
    except redis.RedisError:
        return False
    return any(each.get("master-link-status") == "ok" for each in told)


def _master_port(port: int) -> int:
    return redis.Redis(port=port).sentinel_get_master_addr_by_name(SERVICE)[1]


def _leads(replica: RedisServer) -> bool:
    return redis.Redis(port=replica.port).info("replication")["role"] == "master"


async def test_a_failover_in_mid_song(replicated):
    broker, master, replica, sentinel = replicated
    await until(lambda: _has_replica(sentinel))
    client = broker.async_client()
    producer = Producer(client, ids=JobIds(b"secret"), limits=Limits(ttl_s=600), name="test")
    runner, failed_over = InstantRunner(), threading.Event()
    runner.before_step = lambda: runner.steps == _HELD_AT and failed_over.wait(PATIENCE_S)
    with running(talker(broker, runner=runner), acoustic(broker)):
        _, alone = await listen(producer, await submit(producer, seed=3, frames=_FRAMES))
        job = await submit(producer, seed=3, frames=_FRAMES)
        await reach(producer, job, lambda state: state.chunks >= 1)
        await until(lambda: runner.steps == _HELD_AT)
        await client.wait(1, 0)
        master.kill()
        await until(lambda: _master_port(sentinel) == replica.port and _leads(replica))
        failed_over.set()
        state = await reach(producer, job, lambda state: state.status.final)
        assert state.status is Status.COMPLETED
        assert sha256(await producer.jobs.chunks(job)) == sha256(alone)
    await client.aclose()
