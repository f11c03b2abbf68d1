"""vLLM talkers that die, freeze or leave in mid-song: one sha256, no chunk twice (rules 1, 2 and 4)."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import ExitStack

import pytest
import yaml

from broker_schemas import keys
from tests.chaos.conftest import Nursery
from tests.chaos.test_kills import done, freeze_at_work, handed_on, outcome, submit, submit_and_freeze, undisturbed
from tests.compose.conftest import songline
from tests.redis_server import RedisServer
from tests.tiny_checkpoint import tiny_checkpoint
from tests.waiting import PATIENCE_S, reach, until

pytest.importorskip("vllm", reason="vLLM is not installed")
pytestmark = [pytest.mark.vllm, pytest.mark.redis, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def nursery(server, tmp_path_factory):
    """Forks talkers from one that has its engine, as an engine takes long to start."""
    log = tmp_path_factory.mktemp("nursery") / "workers.log"
    nursery = Nursery(server.url, log, "minimax_music3", str(tiny_checkpoint()), "2", "v1")
    yield nursery
    nursery.close()


@pytest.fixture
async def whole(patron, nursery):
    """The song with nobody killed, and its sha256; a talker and an acoustic worker go on."""
    nursery.clear()
    return await undisturbed(patron, nursery)


async def test_kill_9_after_each_span(patron, nursery, whole):
    """And before the first: a talker stands by each time."""
    (song, expected), alive = whole, nursery.pids[0]
    spans = done(song, keys.TALKER)
    for after in range(spans):
        job = await submit_and_freeze(patron, nursery, alive, keys.TALKER, after=after, of=spans)
        nursery.kill(alive)
        alive = nursery.start(keys.TALKER)
        await handed_on(patron, job, expected, keys.TALKER)
    assert spans >= 3


async def test_a_stop_hands_over_at_once_and_without_a_strike(patron, nursery, whole):
    (song, expected), leaving = whole, nursery.pids[0]
    job = await submit_and_freeze(patron, nursery, leaving, keys.TALKER, after=1, of=song.spans)
    nursery.start(keys.TALKER)
    nursery.kill(leaving, signal.SIGTERM)
    nursery.kill(leaving, signal.SIGCONT)
    state = await handed_on(patron, job, expected, keys.TALKER)
    assert next(freed.why for freed in state.rows_freed) == "handed over"


async def test_one_that_stood_still_past_its_lease_finds_its_writes_refused(patron, nursery, whole):
    (song, expected), frozen = whole, nursery.pids[0]
    job = await submit_and_freeze(patron, nursery, frozen, keys.TALKER, after=1, of=song.spans)
    nursery.start(keys.TALKER)
    await reach(patron, job, lambda state: state.attempts[keys.TALKER] > 1)
    nursery.kill(frozen, signal.SIGCONT)
    await handed_on(patron, job, expected, keys.TALKER)
    events = await patron.jobs.events(job)
    first = next(event.by for event in events if event.type == "job.admitted" and event.data["role"] == keys.TALKER)
    taken = next(event.seq for event in events if event.type == "job.resumed" and event.data["role"] == keys.TALKER)
    assert {event.type for event in events if event.by == first and event.seq > taken} <= {"rows.freed"}
    assert (await outcome(patron, await submit(patron, nursery)))[1] == expected  # both are fit for the next


async def test_the_command_killed_and_taken_over_by_another_of_its_kind(patron, nursery, server, tmp_path):
    """Two engines that never saw one another have one profile, and give the same bytes."""
    for pid in nursery.pids:
        nursery.kill(pid)
    config = tmp_path / "deploy.yaml"
    talker = {"model_runner": "v1", "max_jobs": 2, "max_model_len": 512}
    config.write_text(yaml.safe_dump({"base_config": "minimax_music3", "talker": talker, "leases": {"ttl_s": 2}}))
    flags = ["--config", config, "--checkpoint", tiny_checkpoint(), "--broker", server.url]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    await patron.client.delete(keys.WORKERS)
    with ExitStack() as crew:
        processes = {}
        for role, name in (("talker", "one"), ("talker", "other"), ("acoustic", "sounder")):
            processes[name] = songline(role, *flags, "--name", name, **quiet)
            crew.callback(processes[name].kill)

        async def all_there() -> bool:
            assert not [name for name, process in processes.items() if process.poll() is not None]
            return await patron.client.hlen(keys.WORKERS) == len(processes)

        await until(all_there)
        song, expected = await outcome(patron, await submit(patron, nursery))

        async def talked_by(job: str) -> str:
            await reach(patron, job, lambda state: keys.TALKER in state.admitted_at)
            return next(
                event.by
                for event in await patron.jobs.events(job)
                if event.type == "job.admitted" and event.data["role"] == keys.TALKER
            )

        while not await freeze_at_work(
            patron, nursery, job := await submit(patron, nursery), processes[victim := await talked_by(job)].pid,
            keys.TALKER, after=1, of=done(song, keys.TALKER),
        ):  # fmt: skip
            await outcome(patron, job)
        os.kill(processes[victim].pid, signal.SIGKILL)
        assert processes[victim].wait(PATIENCE_S) == -signal.SIGKILL
        await handed_on(patron, job, expected, keys.TALKER)
