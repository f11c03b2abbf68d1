"""Each role as a process of its own, over a real Redis: the same bytes as all in one, and a stop that is no loss."""

import signal
import time

import pytest

from tests.compose.conftest import await_ready, http, run, serving, songline
from tests.ports import free_port
from tests.redis_server import BINARY, RedisServer
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.redis, pytest.mark.skipif(not BINARY, reason="needs a redis-server binary")]
BODY = {"model": "minimax_music3", "input": "[verse]\nla", "instructions": "a ballad", "seed": 5, "max_new_tokens": 120}


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
    flags = ["--broker", broker, "--checkpoint", tiny]
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
    with serving("up", "--checkpoint", tiny) as (_, url):
        assert sung(url) == apart


def test_jobs_survive_the_process_that_served_them(broker, tiny):
    flags = ["--broker", broker, "--checkpoint", tiny]
    with serving("up", *flags) as (process, url):
        job = http.post(f"{url}/v1/jobs", json={**BODY, "max_new_tokens": 400}).raise_for_status().json()["id"]
        deadline = time.monotonic() + PATIENCE_S
        while not http.get(f"{url}/v1/jobs/{job}").json()["frames"] and time.monotonic() < deadline:
            time.sleep(0.02)
        assert stopped(process) == 0
    with serving("up", *flags) as (_, url):
        code, _, errors = run("follow", job, url=url)
        assert code == 0, errors
        resumed = [
            event["data"]
            for event in http.get(f"{url}/v1/jobs/{job}/events").json()["data"]
            if event["type"] == "job.resumed"
        ]
        log = http.get(f"{url}/v1/jobs/{job}/audio", params={"format": "pcm"}).content
        assert log == sung(url, max_new_tokens=400)
        assert resumed
