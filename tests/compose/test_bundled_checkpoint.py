"""What a role serves where no checkpoint is named: the one that comes with the family, by its own deploy file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import workers.models.qwen3_tts
from compose import serve
from compose.broker import EmbeddedBroker
from compose.checkpoint import demo_folder
from compose.cli import main
from tests.bundled_voice import FOLDER
from tests.compose.conftest import run as command
from tests.tiny_checkpoint import tiny_checkpoint
from workers import run
from workers.models.family import Bundled
from workers.settings import BadSettings, load

ROLES = ("up", "api", "talker", "acoustic")
BUNDLED = tiny_checkpoint("qwen3_tts", size="tiny-8")
OTHER = tiny_checkpoint("qwen3_tts")
OWN = "qwen3_tts_small"


@pytest.fixture
def bundle(monkeypatch):
    """Have Qwen3-TTS bring a checkpoint along, or one whose folder is absent."""

    def bundle(folder):
        family = workers.models.qwen3_tts.FAMILY
        monkeypatch.setattr(workers.models.qwen3_tts, "FAMILY", replace(family, bundled=Bundled(folder, OWN)))

    return bundle


@pytest.fixture
def served(monkeypatch, capsys, tmp_path):
    """The settings that a command serves by; or what it says, where it ends before that."""
    found = []

    def serving(settings):
        found.append(settings)
        raise BadSettings("seen")

    for variable in ("SONGLINE_PLATFORM", "SONGLINE_CHECKPOINT", "SONGLINE_MODEL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(serve, "connect", lambda url: EmbeddedBroker())
    monkeypatch.setattr(serve.Stop, "listen", lambda self: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for role in ("talker", "acoustic"):
        monkeypatch.setattr(run, f"load_{role}", serving)

    def told_api(args, broker, settings):
        found.append(settings)
        raise serve.Trouble("seen", serve.USAGE)

    def of(role, *flags):
        found.clear()
        with pytest.MonkeyPatch.context() as patch:
            if role == "api":
                patch.setattr("compose.api_server.api_server", told_api)
            flags = [role, *map(str, flags), *(["--port", "0"] if role in ("up", "api") else [])]
            code = main([*flags, *(["--home", str(tmp_path)] if role == "up" else [])])
        return (code, capsys.readouterr().err) if not found else found[0]

    return of


@pytest.mark.parametrize("role", ROLES)
def test_it_is_served_where_none_is_named(role, bundle, served):
    bundle(BUNDLED)
    assert served(role) == load(OWN, BUNDLED, platform="cpu"), "on the CPU, whatever the machine has"


@pytest.mark.parametrize("role", ROLES)
def test_what_is_named_wins(role, bundle, served, tmp_path):
    bundle(BUNDLED)
    assert served(role, "--checkpoint", OTHER, "--platform", "cpu") == load("qwen3_tts", OTHER)
    mine = tmp_path / "mine.yaml"
    mine.write_text("base_config: qwen3_tts\ntalker: {max_jobs: 3}\n")
    assert served(role, "--config", mine) == load(str(mine), BUNDLED)
    assert served(role, "--config", "qwen3_tts") == load("qwen3_tts", BUNDLED)
    assert served(role, "--model", "qwen3_tts_2gpu") == load("qwen3_tts_2gpu", BUNDLED)


@pytest.mark.parametrize("role", ROLES)
def test_a_revision_of_nothing_is_refused(role, bundle, served):
    bundle(BUNDLED)
    code, told = served(role, "--revision", "main")
    assert (code, "name that by --checkpoint" in told) == (2, True)


def test_without_the_folder_a_role_asks_for_a_checkpoint_and_up_makes_one(bundle, served, tmp_path):
    bundle(tmp_path / "absent")
    for role in ("api", "talker", "acoustic"):
        code, told = served(role)
        assert (code, "songline make-checkpoint qwen3_tts DIR" in told) == (4, True), role
    assert served("up") == load("qwen3_tts", demo_folder("qwen3_tts", tmp_path))


def test_a_deploy_file_alone_says_whose_checkpoint_up_makes(served, tmp_path):
    settings = served("up", "--config", "minimax_music3_2gpu")
    assert (settings.family, settings.checkpoint) == ("minimax_music3", demo_folder("minimax_music3", tmp_path))


def test_the_doctor_looks_at_it(bundle, capsys, tmp_path):
    flags = ["--port", "0", "--home", str(tmp_path)]
    bundle(BUNDLED)
    main(["doctor", *flags])
    told = capsys.readouterr().out
    assert f"{BUNDLED} is whole" in told and f"{OWN}, model_runner torch" in told
    bundle(tmp_path / "absent")
    main(["doctor", *flags])
    assert "note   checkpoint   none is named" in capsys.readouterr().out


def test_the_doctor_looks_at_what_up_serves_by_a_deploy_file_alone(bundle, capsys, tmp_path):
    bundle(tmp_path / "absent")
    made = demo_folder("qwen3_tts", tmp_path)
    shutil.copytree(OTHER, made)
    main(["doctor", "--model", "minimax_music3", "--config", "qwen3_tts", "--port", "0", "--home", str(tmp_path)])
    assert f"{made} is whole" in capsys.readouterr().out


def test_no_gpu_is_looked_for_where_nothing_is_loaded_on_it():
    """As the api, which stays light."""
    code = "import argparse, sys; from compose.serve import platform_here; "
    code += "assert platform_here(argparse.Namespace(checkpoint=None)) == 'cpu' and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_demo_speaks_by_it_and_saves_a_file(tmp_path):
    code, told, progress = command("demo", "--frames", 3, "--out", tmp_path / "speech.wav", "--home", tmp_path)
    assert code == 0, progress
    assert f"serving the one that Songline has, at {FOLDER}" in progress
    assert told.startswith("speech  ") and (tmp_path / "speech.wav").stat().st_size > 3 * 1920
    assert not (tmp_path / "checkpoints").exists()
