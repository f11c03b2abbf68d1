"""The stack in containers, on a real Docker Engine: it speaks, whoever is killed, and keeps its jobs over down and up.

Runs with `--docker` alone, since it builds the image: `pytest --docker tests/compose/test_stack.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from producer import Songline
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
ROLES = ["redis", "api", "talker", "acoustic"]
SONG = {
    "model": "minimax_music3",
    "input": "[verse]\nThe river wrote a letter to the sea\n",
    "instructions": "a slow folk ballad",
    "seed": 10,  # of the tiny checkpoint: a song of hundreds of frames
}
SONGS = {"SONGLINE_MODEL": SONG["model"], "SONGLINE_CHECKPOINT": "/checkpoints/minimax_music3-tiny"}
HEALTHY_S, BUILT_S, SUNG_S = 300, 1800, 240

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]


class Stack:
    """`docker compose` under a project name of its own, and the api that it publishes."""

    def __init__(self, name: str, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        own = {"COMPOSE_PROJECT_NAME": name, "SONGLINE_PUBLISH": str(port)}
        self._environment = os.environ | own | SONGS

    def compose(self, *command: str, timeout: float = HEALTHY_S) -> str:
        done = subprocess.run(
            ["docker", "compose", *command], cwd=ROOT, env=self._environment, text=True, capture_output=True,
            timeout=timeout,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def up(self, *flags: str) -> None:
        """Started, and every container healthy."""
        self.compose("up", "--detach", *flags)
        wait_for(lambda: all(state == "healthy" for state in self.states()), HEALTHY_S, self.states)

    def containers(self, role: str | None = None) -> list[str]:
        return self.compose("ps", "--quiet", *([role] if role else [])).split()

    def states(self) -> list[str]:
        told = json.loads(docker("inspect", *self.containers()))
        return [one["State"].get("Health", {}).get("Status", one["State"]["Status"]) for one in told]

    def crash(self, *roles: str) -> None:
        """What runs in one container of each role is killed, as the kernel would do it: Docker starts it again."""
        told = json.loads(docker("inspect", *(self.containers(role)[0] for role in roles)))
        subprocess.run(["kill", "-9", *(str(one["State"]["Pid"]) for one in told)], check=True)

    def kill(self, role: str) -> None:
        """By hand, which Docker takes as meant: it stays away."""
        docker("kill", self.containers(role)[0])

    # --- songs

    def submit(self, **changes: object) -> str:
        return self._patiently("POST", "/v1/jobs", json=SONG | changes)["id"]

    def state(self, job: str) -> dict[str, object]:
        return self._patiently("GET", f"/v1/jobs/{job}")

    def drawn(self, job: str) -> bool:
        """Whether a hundred of its frames are in the log."""
        return "codes.logged" in json.dumps(self._patiently("GET", f"/v1/jobs/{job}/events"))

    def sha256(self, job: str) -> str:
        """Of the finished job's sound."""
        wait_for(lambda: self.state(job)["status"] == "completed", SUNG_S, lambda: self.state(job))
        answer = httpx.get(f"{self.url}/v1/jobs/{job}/audio", params={"format": "pcm"}, timeout=60)
        return hashlib.sha256(answer.raise_for_status().content).hexdigest()

    def _patiently(self, method: str, path: str, **request: object) -> dict[str, object]:
        """The api may be the one that was killed, and the broker that it asks."""
        until = time.monotonic() + HEALTHY_S
        headers = {"Idempotency-Key": os.urandom(16).hex()}
        while True:
            try:
                answer = httpx.request(method, self.url + path, headers=headers, timeout=30, **request)
                if answer.status_code < 500:
                    return answer.raise_for_status().json()
            except httpx.TransportError:
                pass
            assert time.monotonic() < until, f"{method} {path} is not answered"
            time.sleep(0.2)


def docker(*command: str) -> str:
    return subprocess.run(["docker", *command], check=True, text=True, capture_output=True, timeout=60).stdout


def wait_for(there: Callable[[], bool], seconds: float, told: Callable[[], object]) -> None:
    until = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < until, told()
        time.sleep(0.2)


@pytest.fixture(scope="module")
def stack(request):
    if not request.config.getoption("--docker"):
        pytest.skip("builds the image: --docker asks for it")
    stack = Stack(f"songline-{os.getpid()}", free_port())
    try:
        stack.compose("build", timeout=BUILT_S)
        stack.up()
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout", "5")


@pytest.fixture(scope="module")
def undisturbed(stack):
    return stack.sha256(stack.submit())


def test_it_sings_to_a_client(stack, undisturbed):
    with Songline(stack.url) as songline:
        job = songline.submit(SONG)
        sound = b"".join(chunk.pcm for chunk in job)
    assert hashlib.sha256(sound).hexdigest() == undisturbed


@pytest.mark.parametrize("role", ["api", "talker", "acoustic"])
def test_nobody_is_root_and_nothing_is_written(stack, role):
    assert stack.compose("exec", "-T", role, "id", "-u").strip() == "10001"
    [told] = json.loads(docker("inspect", stack.containers(role)[0]))
    assert told["HostConfig"]["ReadonlyRootfs"] is True
    assert told["HostConfig"]["CapDrop"] == ["ALL"]


@pytest.mark.parametrize("role", ROLES)
def test_whoever_crashes_in_mid_song_is_started_again_and_the_bytes_are_the_same(stack, undisturbed, role):
    job = stack.submit()
    wait_for(lambda: stack.drawn(job), SUNG_S, lambda: stack.state(job))
    stack.crash(role)
    assert stack.sha256(job) == undisturbed


def test_two_may_crash_at_once_under_load(stack, undisturbed):
    jobs = [stack.submit() for _ in range(3)]
    wait_for(lambda: stack.drawn(jobs[0]), SUNG_S, lambda: stack.state(jobs[0]))
    stack.crash("redis", "talker")
    assert {stack.sha256(job) for job in jobs} == {undisturbed}


def test_a_worker_that_is_killed_by_hand_is_replaced_by_another(stack, undisturbed):
    stack.up("--scale", "talker=2", "--scale", "acoustic=2")
    told = httpx.get(f"{stack.url}/v1/pipeline", timeout=30).json()["workers"]
    assert [worker["role"] for worker in told].count("talker") >= 2
    jobs = [stack.submit() for _ in range(2)]
    wait_for(lambda: stack.drawn(jobs[0]), SUNG_S, lambda: stack.state(jobs[0]))
    stack.kill("talker")
    assert {stack.sha256(job) for job in jobs} == {undisturbed}
    stack.up("--scale", "talker=1", "--scale", "acoustic=1")


def test_jobs_are_kept_over_down_and_up(stack, undisturbed):
    done, under_way = stack.submit(), stack.submit()
    assert stack.sha256(done) == undisturbed
    stack.compose("down")
    stack.up()
    assert stack.sha256(done) == stack.sha256(under_way) == undisturbed
