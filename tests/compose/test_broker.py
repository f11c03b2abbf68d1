"""Redis by URL, and the embedded broker: one store for all threads and event loops of the process."""

import threading
import time

import pytest

from broker_schemas.log import AsyncScripts, Scripts, post_pointer
from compose.broker import EmbeddedBroker, without_password


async def test_a_write_in_a_thread_wakes_a_reader_in_the_event_loop():
    broker = EmbeddedBroker()
    client = broker.async_client()

    def write():
        time.sleep(0.1)
        broker.client().xadd("s", {"x": 1})

    thread = threading.Thread(target=write)
    thread.start()
    began = time.monotonic()
    reply = await client.xread({"s": "0-0"}, block=60_000)
    assert reply[0][1][0][1] == {b"x": b"1"}
    assert time.monotonic() - began < 30
    thread.join()
    await client.aclose()


async def test_scripts_of_threads_and_of_the_event_loop_see_one_store():
    broker = EmbeddedBroker()
    client = broker.async_client()
    assert await AsyncScripts(client)(post_pointer("stream", "job")) == [1]
    assert Scripts(broker.client())(post_pointer("stream", "job")) == [0]
    await client.aclose()


def test_many_threads_may_share_the_client():
    broker = EmbeddedBroker()

    def write():
        for _ in range(100):
            broker.client().incr("n")

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broker.client().get("n") == b"800"


def test_two_brokers_share_nothing_and_neither_is_durable():
    one, other = EmbeddedBroker(), EmbeddedBroker()
    one.client().set("k", 1)
    assert other.client().get("k") is None
    assert one.durable is False


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:s3cret@host:6379/0", "redis://…@host:6379/0"),
        ("rediss://me:s3@cret/@host", "rediss://…@host"),
        ("me:s3cret@host", "…@host"),
        ("unix:///run/redis.sock?db=1&password=s3cret&x=1", "unix:///run/redis.sock?db=1&password=…&x=1"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        (
            "redis+sentinel://me:s3cret@one,two/songs?sentinel_password=s3cret",
            "redis+sentinel://…@one,two/songs?sentinel_password=…",
        ),
    ],
)
def test_a_shown_url_keeps_its_password_to_itself(url, shown):
    assert without_password(url) == shown
