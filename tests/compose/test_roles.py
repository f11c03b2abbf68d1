"""Each role as a process of its own, over a real Redis: the same bytes as all in one, and a stop that is no loss."""

import signal
import time

import pytest

from broker_schemas import keys
from broker_schemas.connection import RedisBroker
from broker_schemas.events import decode
from tests.compose.conftest import await_ready, http, run, serving, songline
from tests.ports import free_port
from tests.redis_server import BINARY, RedisServer
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.redis, pytest.mark.skipif(not BINARY, reason="needs a redis-server binary")]
BODY = {"model": "minimax_music3", "input": "[verse]\nla", "instructions": "a ballad", "seed": 5, "max_new_tokens": 60}
LONG = {**BODY, "max_new_tokens": 450}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server.url
    server.kill()


def stopped(process):
    process.send_signal(signal.SIGTERM)
    return process.wait(PATIENCE_S)


def sung(url, **fields):
    answer = http.post(f"{url}/v1/audio/speech", json={**BODY, "response_format": "pcm", **fields})
    return answer.raise_for_status().content


def test_roles_in_processes_of_their_own(broker, tiny):
    flags = ["--broker", broker, "--model", "minimax_music3", "--checkpoint", tiny]
    port = free_port()
    roles = {
        "api": songline("api", "--port", port, *flags),
        "talker": songline("talker", *flags),
        "acoustic": songline("acoustic", *flags),
    }
    try:
        url = f"http://127.0.0.1:{port}"
        await_ready(url, roles["api"])
        apart = sung(url)
        assert run("health", "--role", "api", "--port", port)[0] == 0
        for role in ("talker", "acoustic"):
            assert run("health", "--role", role, "--broker", broker)[0] == 0
            assert stopped(roles[role]) == 0
            code, _, told = run("health", "--role", role, "--broker", broker)
            assert (code, "has said a word" in told) == (1, True)
        assert http.get(f"{url}/ready").status_code == 503
        assert stopped(roles["api"]) == 0
    finally:
        for process in roles.values():
            process.kill()
    with serving("up", "--model", "minimax_music3", "--checkpoint", tiny) as (_, url):
        assert sung(url) == apart


def logged(broker, job):
    """The types of the job's events."""
    return [decode(entry[b"e"]).type for _, entry in RedisBroker(broker).client().xrange(keys.log(job))]


def frozen_in_mid_song(process, url, broker):
    """A job of which some is sung and some is not, in a process that stands still."""
    while True:
        job = http.post(f"{url}/v1/jobs", json=LONG).raise_for_status().json()["id"]
        deadline = time.monotonic() + PATIENCE_S
        while "span.window" not in logged(broker, job) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        if "span.terminal" not in logged(broker, job):
            return job
        process.send_signal(signal.SIGCONT)


def test_jobs_survive_the_process_that_served_them(broker, tiny):
    flags = ["--broker", broker, "--model", "minimax_music3", "--checkpoint", tiny]
    with serving("up", *flags) as (process, url):
        job = frozen_in_mid_song(process, url, broker)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        assert process.wait(PATIENCE_S) == 0
    with serving("up", *flags) as (_, url):
        code, _, errors = run("follow", job, url=url)
        assert code == 0, errors
        resumed = [
            event["data"]
            for event in http.get(f"{url}/v1/jobs/{job}/events").json()["data"]
            if event["type"] == "job.resumed"
        ]
        log = http.get(f"{url}/v1/jobs/{job}/audio", params={"format": "pcm"}).content
        assert log == sung(url, **LONG)
        assert resumed
