"""What the command says, and with which code it ends, when it cannot do its work."""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from broker_schemas import keys
from broker_schemas.heartbeat import Heartbeat, worker_name
from compose.broker import EmbeddedBroker
from compose.cli import main
from tests.waiting import PATIENCE_S

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield str(sock.getsockname()[1])


def ends(capsys, *argv):
    """(exit code, standard error) of a command."""
    return main(list(argv)), capsys.readouterr().err


@pytest.mark.parametrize("role", ["up", "api"])
def test_a_taken_port_is_named(role, taken_port, capsys):
    code, told = ends(capsys, role, "--port", taken_port)
    assert code == 5
    assert f"port {taken_port} is in use" in told
    assert "--port" in told


@pytest.mark.parametrize("role", ["api", "talker", "acoustic"])
def test_a_missing_checkpoint_says_how_to_make_one(role, tmp_path, capsys):
    flags = ["--port", "0"] if role == "api" else []
    for named in ([], ["--checkpoint", str(tmp_path / "none")]):
        code, told = ends(capsys, role, "--model", "minimax_music3", *flags, *named)
        assert code == 4
        assert "songline make-checkpoint minimax_music3 DIR" in told


@pytest.mark.parametrize("role", ["talker", "acoustic"])
def test_a_redis_that_does_not_answer_says_how_to_start_one(role, tmp_path, capsys):
    flags = ["--model", "minimax_music3", "--checkpoint", str(tmp_path)]
    code, told = ends(capsys, role, *flags, "--broker", NOWHERE)
    assert code == 3
    assert "redis-server --appendonly yes" in told


@pytest.mark.parametrize("url", ["http://:s3cret@here", "redis://:s3cret@127.0.0.1:1/0?foo=bar"])
def test_a_broker_that_is_no_redis_url(url, capsys):
    code, told = ends(capsys, "health", "--role", "talker", "--broker", url)
    assert code == 2
    assert "no Redis URL" in told
    assert "s3cret" not in told


def test_a_broker_that_does_not_answer_keeps_its_password_to_itself(capsys):
    code, told = ends(capsys, "health", "--role", "talker", "--broker", "redis://:s3cret@127.0.0.1:1/0")
    assert (code, "no Redis answers at redis://…@127.0.0.1:1/0" in told, "s3cret" in told) == (3, True, False)


def test_an_unknown_model_is_named_with_those_there_are(tmp_path, capsys):
    code, told = ends(capsys, "talker", "--model", "whale_song", "--checkpoint", str(tmp_path))
    assert code == 2
    assert "minimax_music3" in told


@pytest.mark.parametrize(
    "argv", [["submit", "--lyrics", "{lyrics}"], ["show", "job_1"], ["cancel", "job_1"], ["jobs"], ["follow", "job_1"]]
)
def test_a_server_that_does_not_answer_says_how_to_start_one(argv, tmp_path, capsys):
    lyrics = tmp_path / "lyrics.txt"
    lyrics.write_text("la")
    code, told = ends(capsys, *(part.format(lyrics=lyrics) for part in argv), "--url", "http://127.0.0.1:1")
    assert code == 3
    assert "songline up" in told


def test_a_file_that_cannot_be_written_is_named_before_anything_is_sent(tmp_path, capsys):
    """Nobody answers at the URL: a request would end in code 3."""
    lyrics = tmp_path / "lyrics.txt"
    lyrics.write_text("la")
    nowhere = str(tmp_path / "none" / "file")
    for argv in (["submit", "--out", nowhere], ["bench", "--json", nowhere], ["bench", "--compare", nowhere]):
        code, told = ends(capsys, *argv, "--lyrics", str(lyrics), "--url", "http://127.0.0.1:1")
        assert (code, nowhere in told) == (2, True), argv
    assert ends(capsys, "demo", "--out", nowhere)[0] == 2
    there = tmp_path / "song.wav"
    there.write_bytes(b"keep me")
    for out in (there, tmp_path / "new.wav"):
        code, _ = ends(capsys, "submit", "--lyrics", str(lyrics), "--out", str(out), "--url", "http://127.0.0.1:1")
        assert code == 3
    assert there.read_bytes() == b"keep me"
    assert not (tmp_path / "new.wav").exists()


def test_an_earlier_report_that_is_none_is_refused_before_anything_is_sent(tmp_path, capsys):
    report = tmp_path / "report.json"
    for text in ("[]", '{"format": 1}', "{"):
        report.write_text(text)
        code, told = ends(capsys, "bench", "--compare", str(report), "--url", "http://127.0.0.1:1")
        assert (code, str(report) in told) == (2, True)


def test_a_report_is_written_before_it_is_compared(tmp_path, capsys, monkeypatch):
    async def measured(target, loads, **_):
        return {"format": 1, "body": {}, "levels": []}

    monkeypatch.setattr("producer.bench.bench", measured)
    report, earlier = tmp_path / "report.json", tmp_path / "earlier.json"
    earlier.write_text('{"format": 1, "levels": [{"load": "closed"}]}')
    code, told = ends(capsys, "bench", "--json", str(report), "--compare", str(earlier))
    assert (code, "no report" in told) == (2, True)
    assert json.loads(report.read_text())["levels"] == []


def test_bench_without_a_server(capsys):
    code, told = ends(capsys, "bench", "--url", "http://127.0.0.1:1")
    assert code == 3
    assert "songline up" in told


@pytest.mark.parametrize("named", [[], ["--lyrics", "nowhere.txt"]])
def test_submit_without_lyrics(named, capsys):
    code, told = ends(capsys, "submit", *named)
    assert code == 2
    assert "lyrics" in told


def test_make_checkpoint_refuses(tmp_path, capsys):
    assert ends(capsys, "make-checkpoint", "whale_song", str(tmp_path / "a"))[0] == 2
    code, told = ends(capsys, "make-checkpoint", "minimax_music3", "--size", "vast", str(tmp_path / "a"))
    assert (code, "tiny" in told) == (2, True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "song.txt").write_text("keep me")
    code, told = ends(capsys, "make-checkpoint", "minimax_music3", str(tmp_path / "full"))
    assert (code, "is there already" in told) == (2, True)
    assert (tmp_path / "full" / "song.txt").read_text() == "keep me"


def test_a_checkpoint_cut_short_leaves_no_folder(tmp_path, monkeypatch):
    from compose import checkpoint

    class Breaks:
        sizes = ("tiny",)

        def make_checkpoint(self, folder, size, seed):
            (folder / "half").write_text("half")
            raise OSError("disk full")

    monkeypatch.setattr(checkpoint, "family_named", lambda name: Breaks())
    with pytest.raises(OSError, match="disk full"):
        checkpoint.make("any", "tiny", 0, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_the_demo_checkpoint_may_be_made_by_another_process_meanwhile(when, tmp_path, monkeypatch):
    from compose import checkpoint

    folder = tmp_path / "checkpoints" / "any-tiny-0"

    def other():
        folder.mkdir(parents=True)
        (folder / "whole").write_text("whole")

    class Slow:
        sizes = ("tiny",)

        def make_checkpoint(self, made, size, seed):
            (made / "mine").write_text("mine")
            other()

    def named(family):
        if when == "before":
            other()
        return Slow()

    monkeypatch.setattr(checkpoint, "family_named", named)
    assert checkpoint.demo("any", tmp_path) == folder
    assert [path.name for path in folder.iterdir()] == ["whole"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_the_demos_server_is_of_its_model_and_open_to_it(monkeypatch):
    from compose import demonstration

    monkeypatch.setenv("SONGLINE_API_KEYS", "a-key")
    monkeypatch.setattr(demonstration, "_await_ready", lambda url, server: None)
    started = []

    class Server:
        def __init__(self, command, env):
            started.append((command, env))

        def send_signal(self, number): ...

        def wait(self, timeout): ...

    monkeypatch.setattr(demonstration.subprocess, "Popen", Server)
    with demonstration.serving(argparse.Namespace(home="here", model="whale_song")):
        pass
    ((command, env),) = started
    assert command[command.index("--model") + 1] == "whale_song"
    assert env["SONGLINE_API_KEYS"] == ""


def test_a_checkpoint_can_be_read_by_other_users(tiny):
    paths = [tiny, *tiny.rglob("*")]
    assert len(paths) > 10
    assert all(path.stat().st_mode & 0o004 for path in paths)
    assert all(path.stat().st_mode & 0o001 for path in paths if path.is_dir())


def test_models_are_listed(capsys):
    assert main(["models"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == ["minimax_music3", "qwen3_tts"]


def test_health_of_nobody(taken_port, capsys):
    code, told = ends(capsys, "health", "--role", "talker", "--broker", NOWHERE)
    assert (code, "no Redis answers" in told) == (3, True)
    code, told = ends(capsys, "health", "--role", "api", "--port", "1")
    assert (code, "does not answer" in told) == (1, True)
    assert ends(capsys, "health", "--role", "conductor")[0] == 2


@pytest.mark.parametrize(
    ("at_ms", "workers", "code"),
    [
        (9_999_000, [worker_name("ROLE")], 0),
        (9_989_000, [worker_name("ROLE")], 1),
        (9_999_000, [f"ROLE-{socket.gethostname()}-2-7-abcdef", worker_name("acoustic"), "mine"], 1),
        (9_999_000, [], 1),
    ],
)
@pytest.mark.parametrize("role", ["talker", "archive"])
def test_health_is_that_of_this_hosts_workers_by_the_brokers_clock(at_ms, workers, code, role, capsys, monkeypatch):
    broker = EmbeddedBroker()
    client = broker.client()
    monkeypatch.setattr("compose.health.connect", lambda url: broker)
    monkeypatch.setattr(client, "time", lambda: (10_000, 0))
    client.hset(keys.WORKERS, "rubbish", b"\xc1")
    for worker in (name.replace("ROLE", role) for name in workers):
        client.hset(keys.WORKERS, worker, Heartbeat(worker, worker.split("-")[0], "m", "p", at_ms).pack())
    assert ends(capsys, "health", "--role", role)[0] == code
    assert ends(capsys, "health", "--role", role, "--name", "mine")[0] == int("mine" not in workers)


@pytest.mark.parametrize("letters", [1, 1_000_000], ids=["little", "much"])
def test_who_does_not_read_on_is_told_nothing(letters):
    script = (
        "import sys, compose.checkpoint; from compose.cli import main; "
        f"compose.checkpoint.list_families = lambda args: print('x' * {letters}); sys.stdin.read(); "
        "sys.exit(main(['models']))"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen([sys.executable, "-c", script], env=buffered, **pipes)
    process.stdout.close()
    process.stdin.close()
    assert (process.wait(PATIENCE_S), process.stderr.read()) == (1, b"")


def test_clients_do_without_torch():
    check = (
        "import sys, compose.cli, compose.speaking, compose.timeline, compose.verification, compose.benching, "
        "compose.health; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


def test_the_first_signal_asks_and_the_second_ends():
    script = (
        "import time; from compose.stopping import Stop; stop = Stop(lambda: print('asked', flush=True)); "
        "stop.listen(); print('ready', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "asked\n"
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
