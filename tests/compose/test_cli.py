"""What the command says, and with which code it ends, when it cannot do its work."""

import signal
import socket
import subprocess
import sys

import pytest

from compose.cli import main

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
        code, told = ends(capsys, role, *flags, *named)
        assert code == 4
        assert "songline make-checkpoint minimax_music3 DIR" in told


@pytest.mark.parametrize("role", ["talker", "acoustic"])
def test_a_redis_that_does_not_answer_says_how_to_start_one(role, tmp_path, capsys):
    code, told = ends(capsys, role, "--checkpoint", str(tmp_path), "--broker", NOWHERE)
    assert code == 3
    assert "redis-server --appendonly yes" in told


def test_a_broker_that_is_no_redis_url(tmp_path, capsys):
    code, told = ends(capsys, "talker", "--checkpoint", str(tmp_path), "--broker", "http://here")
    assert code == 2
    assert "no Redis URL" in told


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


def test_a_checkpoint_can_be_read_by_other_users(tiny):
    paths = [tiny, *tiny.rglob("*")]
    assert len(paths) > 10
    assert all(path.stat().st_mode & 0o004 for path in paths)
    assert all(path.stat().st_mode & 0o001 for path in paths if path.is_dir())


def test_models_are_listed(capsys):
    assert main(["models"]) == 0
    assert "minimax_music3" in capsys.readouterr().out


def test_health_of_nobody(taken_port, capsys):
    code, told = ends(capsys, "health", "--role", "talker", "--broker", NOWHERE)
    assert (code, "no Redis answers" in told) == (3, True)
    code, told = ends(capsys, "health", "--role", "api", "--port", "1")
    assert (code, "does not answer" in told) == (1, True)
    assert ends(capsys, "health", "--role", "conductor")[0] == 2


def test_clients_do_without_torch():
    check = (
        "import sys, compose.cli, compose.client, compose.benching, compose.health; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


def test_the_first_signal_asks_and_the_second_ends():
    script = (
        "import time; from compose.stopping import Stop; stop = Stop(lambda: print('asked', flush=True)); "
        "stop.listen(); print('ready', flush=True); time.sleep(30)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "asked\n"
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 128 + signal.SIGTERM
