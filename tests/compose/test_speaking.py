"""`songline say` and `songline sing`, as a user types them: where the text comes from, and where the sound goes."""

import hashlib
import json
import os
import signal
import subprocess
import wave
from pathlib import Path

import pytest

from compose.outlets import Pipe, opened
from compose.player import PLAYERS, player, player_here
from compose.trouble import Trouble
from producer import Songline
from producer.wav import wav_header
from tests.compose.conftest import run, serving, songline
from tests.tiny_checkpoint import tiny_checkpoint
from tests.waiting import PATIENCE_S

TEXT = "The river knows the way."
SHORT = ["--frames", 4, "--seed", 7]
HEADER = 44


@pytest.fixture(scope="module")
def url():
    with serving("up", "--model", "qwen3_tts", "--checkpoint", tiny_checkpoint("qwen3_tts")) as (_, url):
        yield url


@pytest.fixture(scope="module")
def music(tiny):
    with serving("up", "--model", "minimax_music3", "--checkpoint", tiny) as (_, url):
        yield url


@pytest.fixture(scope="module")
def pcm(url):
    """What TEXT sounds like by SHORT."""
    with Songline(url) as api:
        return b"".join(chunk.pcm for chunk in api.say(TEXT, seed=7, max_new_tokens=4))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in, on a machine without players."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    # The command is run in the folder, and is to be found from there.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return tmp_path


def install(here, name, script):
    """A player that does what a shell script says."""
    path = here / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def bytes_of(*argv, url, stdin=b""):
    """A command's (exit code, output, errors), its output as it is."""
    process = songline(*argv, "--url", url, stdout=-1, stderr=-1, stdin=-1, binary=True)
    out, err = process.communicate(stdin, timeout=PATIENCE_S)
    return process.returncode, out, err.decode()


def sound(path):
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        return file.readframes(file.getnframes())


@pytest.mark.parametrize(("argv", "stdin"), [([TEXT], None), (["-"], TEXT), ([], TEXT)], ids=["argument", "-", "stdin"])
def test_what_is_said_is_an_argument_or_standard_input(argv, stdin, url, here, pcm):
    code, told, progress = run("say", *argv, *SHORT, "-o", "f.wav", url=url, stdin=stdin)
    assert code == 0, progress
    assert sound("f.wav") == pcm
    assert told.splitlines()[1:] == ["f.wav"]
    assert "completed" in told
    assert "s of sound after" in progress and "s of sound after" not in told


def test_standard_output_has_the_sound_and_nothing_else(url, here, pcm):
    code, out, told = bytes_of("say", TEXT, *SHORT, "-o", "-", url=url)
    assert code == 0
    assert out == wav_header(24_000, 1, None) + pcm
    assert "completed" in told
    assert bytes_of("say", TEXT, *SHORT, "-o", "-", "--format", "pcm", url=url)[1] == pcm
    assert list(here.glob("*.*")) == []


def test_a_file_of_raw_samples(url, here, pcm):
    assert run("say", TEXT, *SHORT, "-o", "f.pcm", "--format", "pcm", url=url)[0] == 0
    assert (here / "f.pcm").read_bytes() == pcm


def test_without_a_player_a_file_is_written_and_named(url, here, pcm):
    code, told, _ = run("say", TEXT, *SHORT, url=url)
    assert code == 0
    (file,) = here.glob("*.wav")
    assert told.splitlines() == [told.splitlines()[0], file.name]
    assert file.name.startswith("job_")
    assert sound(file) == pcm


def test_with_a_player_it_is_played(url, here, pcm):
    install(here, "aplay", f"/bin/cat > {here}/played; echo $@ > {here}/flags")
    assert run("say", TEXT, *SHORT, url=url)[0] == 0
    assert (here / "played").read_bytes() == pcm
    assert "S16_LE -r 24000 -c 1" in (here / "flags").read_text()
    assert list(here.glob("*.wav")) == []
    assert run("say", TEXT, *SHORT, "--no-play", url=url)[0] == 0
    assert len(list(here.glob("*.wav"))) == 1
    assert run("say", TEXT, *SHORT, "-o", "f.wav", "--play", url=url)[0] == 0
    assert sound("f.wav") == pcm


def test_play_without_a_player_is_refused_before_anything_is_sent(here):
    code, _, told = run("say", TEXT, "--play", url="http://127.0.0.1:1")
    assert (code, "ffplay" in told) == (2, True)


def test_a_player_that_ends_early_ends_the_job(url, here):
    install(here, "aplay", "exit 3")
    code, _, told = run("say", TEXT, url=url)
    assert (code, "aplay ended with code 3" in told) == (1, True)
    job = told.split()[0]
    assert json.loads(run("show", job, "--json", url=url)[1])["status"] in ("cancelled", "completed")


def test_the_first_player_there_is(here):
    assert player_here() is None
    with pytest.raises(Trouble, match="no player"):
        player(24_000, 1)
    for name in reversed(PLAYERS):
        install(here, name, "")
        assert player_here() == name


def test_what_is_written_to_a_pipe_is_there_at_once():
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    with open(reads, "rb", buffering=0) as reader, open(writes, "wb") as stream:
        pipe = Pipe(stream, b"head")
        assert reader.read(100) == b"head"
        pipe.write(b"er")
        assert reader.read(100) == b"er"


@pytest.mark.parametrize("name", PLAYERS)
def test_each_player_is_given_the_sound(name, here):
    source = '"$1"' if name == "afplay" else ""
    install(here, name, f"/bin/cat {source} > {here}/played; echo $@ > {here}/flags")
    with opened(None, "wav", play=True, rate=24_000, channels=2) as (outlet,):
        outlet.write(b"\1\2\3\4")
        outlet.write(b"\5\6\7\0")
    played = (here / "played").read_bytes()
    assert played[-8:] == b"\1\2\3\4\5\6\7\0"
    headers = {"ffplay": wav_header(24_000, 2, None), "afplay": wav_header(24_000, 2, 8)}
    assert played[:-8] == headers.get(name, b"")
    if not headers.get(name):
        assert "24000" in (here / "flags").read_text()


def test_a_player_stops_with_whoever_stops_listening(here):
    install(here, "aplay", "exec /bin/sleep 600")
    with pytest.raises(KeyboardInterrupt):
        with opened(None, "wav", play=True, rate=24_000, channels=2):
            raise KeyboardInterrupt


def test_the_result_as_json(url, here, pcm):
    code, told, _ = run("say", TEXT, *SHORT, "-o", "f.wav", "--json", url=url)
    result = json.loads(told)
    assert code == 0
    assert result["sha256"] == hashlib.sha256(pcm).hexdigest()
    assert (result["status"], result["seed"], result["file"], result["error"]) == ("completed", 7, "f.wav", None)
    assert result["audio_seconds"] == len(pcm) / 2 / 24_000


def test_how_it_is_said(url, here):
    flags = ["--voice", "vivian", "--language", "English", "--instructions", "In a whisper."]
    code, told, _ = run("say", TEXT, *SHORT, *flags, "-o", "f.wav", "--json", url=url)
    assert code == 0
    params = json.loads(run("show", json.loads(told)["id"], "--json", url=url)[1])["params"]
    assert (params["voice"], params["language"], params["max_new_tokens"]) == ("vivian", "English", 4)
    code, _, told = run("say", TEXT, "--voice", "nobody", "-o", "f.wav", url=url)
    assert (code, "voice" in told) == (2, True)


def test_what_was_said_is_verified_and_shown(url, here):
    job = json.loads(run("say", TEXT, *SHORT, "-o", "f.wav", "--json", url=url)[1])["id"]
    before = run("jobs", "--json", "--limit", 100, url=url)[1]
    code, told, _ = run("verify", job, url=url)
    assert (code, "the same bytes" in told) == (0, True)
    code, told, _ = run("verify", job, "--json", url=url)
    assert (code, json.loads(told)["same"]) == (0, True)
    assert json.loads(run("jobs", "--json", "--limit", 100, url=url)[1]) == json.loads(before)
    told = run("show", job, url=url)[1]
    lines = told.splitlines()
    assert lines[0].split()[:4] == [job, "completed", "qwen3_tts", "seed"]
    events = [line.split()[2] for line in lines[3:]]
    assert (events[0], events[-1]) == ("requested", "completed")
    assert {"admitted", "span", "chunk"} <= set(events)
    listed = run("jobs", url=url)[1].splitlines()
    assert listed[0].split() == ["job", "status", "model", "requested", "sound", "first", "took"]
    assert any(line.startswith(f"{job}  completed") for line in listed)


def test_a_job_that_is_not_completed_cannot_be_verified(music):
    job = run("submit", "--lyrics", "-", "--caption", "slow", "--detach", url=music, stdin="la la")[1].strip()
    assert run("cancel", job, url=music)[0] == 0
    code, _, told = run("verify", job, url=music)
    assert (code, "only a completed job" in told) == (6, True)


def test_lyrics_are_an_argument_a_file_or_standard_input(music, here):
    (here / "lyrics.txt").write_text("la la")
    flags = ["--caption", "slow", "--frames", 30, "--seed", 3, "-o", "f.wav"]
    songs = set()
    for argv, stdin in ((["la la"], None), (["--lyrics", "lyrics.txt"], None), ([], "la la"), (["-"], "la la")):
        assert run("sing", *argv, *flags, url=music, stdin=stdin)[0] == 0
        songs.add((here / "f.wav").read_bytes())
    assert len(songs) == 1
    code, _, told = run("sing", "la", "--lyrics", "lyrics.txt", *flags, url=music)
    assert (code, "twice" in told) == (2, True)


def test_sound_comes_while_the_song_is_made_and_ctrl_c_ends_it(music, here):
    command = ["sing", "la la", "--caption", "slow", "-o", "-", "--url", music]  # of six minutes
    process = songline(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, binary=True)
    job = process.stderr.readline().decode().split()[0]
    assert len(process.stdout.read(HEADER + 4)) == HEADER + 4
    assert json.loads(run("show", job, "--json", url=music)[1])["status"] in ("talking", "sounding")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert json.loads(run("show", job, "--json", url=music)[1])["status"] == "cancelled"


def test_a_pipe_that_nobody_reads_any_more_ends_the_job(music, here):
    command = ["sing", "la la", "--caption", "slow", "-o", "-", "--url", music]
    process = songline(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, binary=True)
    process.stdout.close()
    told = process.stderr.read().decode()
    assert process.wait(PATIENCE_S) == 1
    job = told.split()[0]
    assert json.loads(run("show", job, "--json", url=music)[1])["status"] == "cancelled"
    assert "Traceback" not in told and "Exception ignored" not in told


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_told_in_a_sentence():
    with pytest.raises(Trouble, match="No space left"):
        with opened(Path("/dev/full"), "pcm", play=False, rate=24_000, channels=1) as (outlet,):
            outlet.write(b"\0" * 1_000_000)
