"""`songline archive` as an operator runs it: real processes, a real Redis, and kills in between."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys

import pytest

from broker_schemas import keys, log
from compose.cli import main
from tests.api.conftest import serving as api_serving
from tests.compose.conftest import http, run, serving, songline
from tests.producer.archive.conftest import archiver, caught_up, facts, files, runs
from tests.waiting import PATIENCE_S, until


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "archive"


def archived(folder, jobs) -> bool:
    return all(list(folder.rglob(f"{job['id']}.json")) for job in jobs)


async def test_nothing_is_lost_when_it_is_killed_and_started_again(real_broker, redis_server, folder):
    flags = ["--archive", folder, "--broker", redis_server.url]
    async with api_serving(real_broker) as api:
        first = [await api.played(2) for _ in range(3)]
        process = songline("archive", *flags)
        try:
            await until(lambda: archived(folder, first[:1]))
        finally:
            process.kill()
            process.wait(PATIENCE_S)
        jobs = [*first, await api.played(1)]
        process = songline("archive", *flags)
        try:
            await until(lambda: archived(folder, jobs))
            health = ["health", "--role", "archive", "--broker", redis_server.url]
            await until(lambda: main(health) == 0)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    for job in jobs:
        sound = facts(folder, job)["sound"]
        [wav] = folder.rglob(sound["file"])
        assert hashlib.sha256(wav.read_bytes()).hexdigest() == sound["sha256"]


async def test_once_archives_what_is_there_and_ends(real_broker, redis_server, folder, capsys):
    flags = ["archive", "--archive", str(folder), "--broker", redis_server.url, "--once"]
    async with api_serving(real_broker) as api:
        jobs = [await api.played(1) for _ in range(3)]
    for told in ("3 archived, 0 were there already\n", "0 archived, 3 were there already\n"):
        process = songline(*flags, "--archive-format", "flac", stdout=subprocess.PIPE)
        assert (process.communicate(timeout=PATIENCE_S)[0], process.returncode) == (told, 0)
    assert archived(folder, jobs) and len(list(folder.rglob("*.flac"))) == 3
    real_broker.client().zadd(keys.UNARCHIVED, {jobs[0]["id"]: 2e15})  # another has it, or put it off
    assert main(flags) == 0
    assert capsys.readouterr().out.endswith("\n1 wait: another has them in hand, or they are put off\n")
    real_broker.client().delete(*real_broker.client().keys("*:audio"))
    for path in folder.rglob("*.json"):
        path.unlink()
    assert main(flags) == 1


@pytest.mark.parametrize(
    ("flags", "told", "code"),
    [
        ([], "--archive", 2),
        (["--archive", "nowhere://x"], "nowhere", 2),
        (["--archive", "/dev/null/x"], "cannot be used", 1),
    ],
)
def test_what_keeps_it_from_its_work_is_told(real_broker, redis_server, flags, told, code, capsys):
    assert main(["archive", "--broker", redis_server.url, *flags]) == code
    assert told in capsys.readouterr().err


def test_a_store_whose_package_is_missing_names_it(real_broker, redis_server, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)  # another test may have used it
    assert main(["archive", "--broker", redis_server.url, "--archive", "s3://songs"]) == 2
    assert "songline[s3]" in capsys.readouterr().err


# Patient for a moment only: what no flag sets.
HASTY = (
    "import sys; from functools import partial; from compose import archiving, cli; "
    "archiving.ArchiveSettings = partial(archiving.ArchiveSettings, look_every_s=0.05, claim_s=0.3, patience_s=0.3); "
    "sys.exit(cli.main(sys.argv[1:]))"
)


async def test_one_whose_store_answers_no_more_ends_to_be_started_anew(real_broker, redis_server, folder):
    """A FIFO that nobody writes to holds whoever reads it for ever, as a share does whose server is gone."""
    async with api_serving(real_broker) as api:
        jobs = [await api.played(1) for _ in range(2)]
        await caught_up(real_broker, folder)
        places = [next(folder.rglob(f"{job['id']}.json")) for job in jobs]
        for place in places:
            place.unlink()
            os.mkfifo(place)
        await api.service.run(log.archive_again([job["id"] for job in jobs]))
    flags = ["archive", "--archive", str(folder), "--broker", redis_server.url]
    process = subprocess.Popen([sys.executable, "-c", HASTY, *flags], stderr=subprocess.PIPE, text=True)
    try:
        _, told = await asyncio.to_thread(process.communicate, timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 1 and "answers none of its calls" in told, told
    assert not real_broker.client().exists(keys.WORKERS)
    for place in places:
        place.unlink()
    await runs(archiver(real_broker, folder, claim_s=1.0), lambda: archived(folder, jobs))


def test_everything_in_one_process_keeps_an_archive_too(tiny, folder):
    body = {"model": "minimax_music3", "input": "[verse]\nla", "instructions": "x", "seed": 5, "max_new_tokens": 60}
    with serving("up", "--model", "minimax_music3", "--checkpoint", tiny, "--archive", folder) as (_, url):
        job = http.post(f"{url}/v1/jobs", json=body).raise_for_status().json()
        code, _, errors = run("follow", job["id"], "-o", folder.parent / "heard.wav", url=url)
        assert code == 0, errors
        while not archived(folder, [job]):
            assert http.get(f"{url}/health").status_code == 200
        [wav] = folder.rglob("*.wav")
        assert wav.read_bytes() == (folder.parent / "heard.wav").read_bytes()
        assert json.loads(next(folder.rglob("*.json")).read_bytes())["sound"]["sample_rate"] == 32_000
    assert len(files(folder)) == 2
