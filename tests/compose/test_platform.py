"""Which values of the deploy file a role takes: those of the machine it is on, unless it is told otherwise."""

import subprocess
import sys

import pytest
import torch

from compose import serve
from compose.broker import EmbeddedBroker
from compose.cli import main
from workers import run
from workers.settings import BadSettings

SONG = ("--model", "minimax_music3")
OF_API = """
import sys
from compose import serve
from compose.broker import EmbeddedBroker
from compose.cli import main
serve.connect = lambda url: EmbeddedBroker()
def served(args, server, sock, model, stop, threads):
    print(model, sorted({"torch", "vllm", "diffusers"} & sys.modules.keys()))
    stop.set()
serve._serve = served
sys.exit(main(["api", "--port", "0", *sys.argv[1:]]))
"""


@pytest.fixture
def chosen(monkeypatch, tiny, capsys):
    """What a command would load: (role, talker's runner, its device, the acoustic stage's)."""
    monkeypatch.delenv("SONGLINE_PLATFORM", raising=False)
    monkeypatch.setattr(serve, "connect", lambda url: EmbeddedBroker())
    monkeypatch.setattr(serve.Stop, "listen", lambda self: None)
    monkeypatch.setattr(serve.checkpoint, "demo", lambda family, home: tiny)

    def refusing(role):
        def load(settings):
            devices = [stage.options.get("device", "cpu") for stage in (settings.talker, settings.acoustic)]
            raise BadSettings(f"{role} {settings.talker.model_runner} {' '.join(devices)}")

        return load

    for role in ("talker", "acoustic"):
        monkeypatch.setattr(run, f"load_{role}", refusing(role))

    def of(command, *flags, gpu):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        port = ["--port", "0"] if command == "up" else []
        assert main([command, *port, *map(str, flags)]) == 2
        return tuple(capsys.readouterr().err.strip().removeprefix("songline: ").split())

    return of


@pytest.mark.parametrize("role", ["talker", "acoustic"])
def test_a_worker_takes_the_platform_of_its_machine(chosen, tiny, role):
    assert chosen(role, *SONG, "--checkpoint", tiny, gpu=False) == (role, "torch", "cpu", "cpu")
    assert chosen(role, *SONG, "--checkpoint", tiny, gpu=True) == (role, "v2", "cuda", "cuda")


def test_a_flag_or_a_variable_wins(chosen, tiny, monkeypatch):
    assert chosen("talker", *SONG, "--checkpoint", tiny, "--platform", "cpu", gpu=True)[1] == "torch"
    assert chosen("talker", *SONG, "--checkpoint", tiny, "--platform", "cuda", gpu=False)[1] == "v2"
    monkeypatch.setenv("SONGLINE_PLATFORM", "cuda")
    assert chosen("talker", *SONG, "--checkpoint", tiny, gpu=False)[1] == "v2"


def test_up_takes_the_gpu_for_a_checkpoint_of_ones_own_alone(chosen, tiny):
    assert chosen("up", *SONG, "--checkpoint", tiny, gpu=True)[1] == "v2"
    assert chosen("up", *SONG, gpu=True) == ("talker", "torch", "cpu", "cpu")
    assert chosen("up", *SONG, "--platform", "cuda", gpu=True)[1] == "v2"


def test_a_shipped_file_by_its_name(chosen, tiny):
    flags = (*SONG, "--checkpoint", tiny, "--config", "minimax_music3_2gpu")
    assert chosen("acoustic", *flags, gpu=True) == ("acoustic", "v2", "cuda", "cuda:1")


def test_an_unknown_platform_is_wrong_usage(tiny, capsys):
    assert main(["talker", *SONG, "--checkpoint", str(tiny), "--platform", "tpu"]) == 2
    assert "no platform 'tpu': use one of cpu, cuda" in capsys.readouterr().err


def test_arithmetic_of_a_whole_process_is_not_shared(chosen, tiny, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("base_config: minimax_music3_v1\ntalker: {batch_invariant: true}\n")
    flags = (*SONG, "--checkpoint", tiny, "--config", mine)
    assert chosen("up", *flags, gpu=False)[0] == "talker.batch_invariant"
    assert chosen("talker", *flags, gpu=False)[:2] == ("talker", "v1")


def test_the_api_asks_no_gpu(tiny):
    """It loads nothing that could tell, and serves a model of any platform."""
    for platform in ((), ("--platform", "cuda")):
        command = [sys.executable, "-c", OF_API, *SONG, "--checkpoint", str(tiny), *platform]
        told = subprocess.run(command, capture_output=True, text=True)
        assert (told.returncode, told.stdout.strip()) == (0, "minimax_music3 []"), told.stderr
