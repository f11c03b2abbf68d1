"""Each role as a process of its own, over a real Redis: the same bytes as all in one, and a stop that is no loss."""

import shutil
import signal
import subprocess
import time

import httpx
import pytest
import redis

from tests.compose.conftest import await_ready, free_port, run, serving, songline

pytestmark = [
    pytest.mark.redis,
    pytest.mark.skipif(not shutil.which("redis-server"), reason="needs a redis-server binary"),
]
BODY = {"model": "minimax_music3", "input": "[verse]\nla", "instructions": "a ballad", "seed": 5, "max_new_tokens": 120}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    port = free_port()
    folder = tmp_path_factory.mktemp("redis")
    command = ["redis-server", "--port", str(port), "--dir", str(folder), "--appendonly", "yes", "--save", ""]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    client = redis.Redis(port=port)
    for _ in range(100):
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.05)
    yield f"redis://127.0.0.1:{port}/0"
    server.terminate()
    server.wait(10)


def stopped(process):
    process.send_signal(signal.SIGTERM)
    return process.wait(30)


def sung(url, **fields):
    answer = httpx.post(f"{url}/v1/audio/speech", json={**BODY, "response_format": "pcm", **fields}, timeout=120)
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
        assert httpx.get(f"{url}/ready").status_code == 503
        assert stopped(roles["api"]) == 0
    finally:
        for process in roles.values():
            process.kill()
    with serving("up", "--checkpoint", tiny) as (_, url):
        assert sung(url) == apart


def test_jobs_survive_the_process_that_served_them(broker, tiny):
    flags = ["--broker", broker, "--checkpoint", tiny]
    with serving("up", *flags) as (process, url):
        job = httpx.post(f"{url}/v1/jobs", json={**BODY, "max_new_tokens": 400}).raise_for_status().json()["id"]
        deadline = time.monotonic() + 60
        while not httpx.get(f"{url}/v1/jobs/{job}").json()["frames"] and time.monotonic() < deadline:
            time.sleep(0.1)
        assert stopped(process) == 0
    with serving("up", *flags) as (_, url):
        code, _, errors = run("follow", job, url=url)
        assert code == 0, errors
        resumed = [
            event["data"]
            for event in httpx.get(f"{url}/v1/jobs/{job}/events").json()["data"]
            if event["type"] == "job.resumed"
        ]
        log = httpx.get(f"{url}/v1/jobs/{job}/audio", params={"format": "pcm"}).content
        assert log == sung(url, max_new_tokens=400)
        assert resumed
