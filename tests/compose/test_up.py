"""All roles in one process, used as a user uses them: through the command and HTTP."""

import hashlib
import json
import signal
import subprocess
import time
import wave

import pytest

from tests.compose.conftest import http, run, serving, songline
from tests.waiting import PATIENCE_S

LYRICS = "[verse]\nThe river wrote a letter to the sea\n"
ENDLESS = ["--lyrics", "-", "--caption", "a slow folk ballad"]  # six minutes: no test hears the end of it
SONG = [*ENDLESS, "--frames", 220]


@pytest.fixture(scope="module")
def server(tiny):
    with serving("up", "--model", "minimax_music3", "--checkpoint", tiny) as (process, url):
        yield process, url


@pytest.fixture
def url(server):
    return server[1]


def digest(path):
    with wave.open(str(path)) as song:
        return hashlib.sha256(song.readframes(song.getnframes())).hexdigest()


def submitted(url, seed, frames=220):
    body = {
        "model": "minimax_music3",
        "input": LYRICS,
        "instructions": "a ballad",
        "seed": seed,
        "max_new_tokens": frames,
    }
    return http.post(f"{url}/v1/jobs", json=body).raise_for_status().json()["id"]


def test_a_song_is_sung_and_saved(url, tmp_path):
    out = tmp_path / "song.wav"
    code, told, progress = run("submit", *SONG, "--seed", 7, "--out", out, url=url, stdin=LYRICS)
    assert code == 0, progress
    assert "completed" in told
    with wave.open(str(out)) as song:
        assert (song.getframerate(), song.getnchannels(), song.getsampwidth()) == (32000, 2, 2)
        assert abs(song.getnframes() - 220 * 32000 // 25) < 32000 // 25  # to a frame: a resampler has an end
    assert "s of sound after" in progress
    again = tmp_path / "again.wav"
    job = told.split()[0]
    assert run("follow", job, "--out", again, url=url)[0] == 0
    assert again.read_bytes() == out.read_bytes()
    file = http.get(f"{url}/v1/jobs/{job}/audio", params={"format": "pcm"}).raise_for_status().content
    assert hashlib.sha256(file).hexdigest() == digest(out)


def test_jobs_and_show(url):
    job = submitted(url, seed=1)
    assert job in run("jobs", url=url)[1]
    state = json.loads(run("show", job, "--json", url=url)[1])
    assert (state["id"], state["seed"]) == (job, 1)
    assert run("show", "job_none", url=url)[0] == 1


def test_detach_and_cancel(url):
    code, told, _ = run("submit", *ENDLESS, "--seed", 4, "--detach", url=url, stdin=LYRICS)
    assert code == 0
    job = told.strip()
    assert "cancelled" in run("cancel", job, url=url)[1]
    code, _, errors = run("follow", job, url=url)
    assert (code, "cancelled" in errors) == (1, True)


def test_ctrl_c_cancels_the_job_it_waits_for(url):
    known = {job["id"] for job in http.get(f"{url}/v1/jobs").json()["data"]}
    client = songline("submit", *ENDLESS, "--seed", 3, "--url", url, stdin=subprocess.PIPE)
    client.stdin.write(LYRICS)
    client.stdin.close()
    deadline = time.monotonic() + PATIENCE_S
    new = set()
    while not new and time.monotonic() < deadline:
        new = {job["id"] for job in http.get(f"{url}/v1/jobs").json()["data"]} - known
        time.sleep(0.05)
    client.send_signal(signal.SIGINT)
    assert client.wait(PATIENCE_S) == 130
    (job,) = new
    assert http.get(f"{url}/v1/jobs/{job}").json()["status"] == "cancelled"


def test_a_refusal_names_the_field(url):
    code, _, errors = run("submit", "--lyrics", "-", "--caption", "x", "--frames", 99999, url=url, stdin=LYRICS)
    assert code == 2
    assert "max_new_tokens" in errors
    code, _, errors = run("jobs", "--status", "odd", url=url)
    assert (code, errors.count("status:")) == (2, 1)


def test_bench_by_both_ways_hears_the_same_bytes(url, tmp_path):
    lyrics = tmp_path / "lyrics.txt"
    lyrics.write_text(LYRICS)
    flags = ["--model", "minimax_music3", "--lyrics", lyrics, "--caption", "a ballad", "--frames", 60]
    flags += ["--requests", 3, "--warm-up", 0]
    reports = {}
    for via in ("speech", "jobs"):
        reports[via] = tmp_path / f"{via}.json"
        code, table, errors = run(
            "bench", *flags, "--concurrency", "1,3", "--via", via, "--json", reports[via], url=url
        )
        assert code == 0, table + errors
        assert "one sha256 for each of 3 seeds" in table
    spoken, jobs = (json.loads(report.read_text()) for report in reports.values())
    digests = [[result["sha256"] for result in level["results"]] for level in (*spoken["levels"], *jobs["levels"])]
    assert digests[0] == digests[1] == digests[2] == digests[3]
    assert len(set(digests[0])) == 3
    assert all(result["audio_s"] > 0.5 for result in jobs["levels"][0]["results"])


def test_it_stops_when_asked(tiny):
    with serving("up", "--model", "minimax_music3", "--checkpoint", tiny) as (process, url):
        submitted(url, seed=1, frames=9000)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
