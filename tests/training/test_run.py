"""All steps in one command: what is there is not made again, and half a result is none."""

import subprocess
import sys

import pytest

from workers.training.__main__ import Run


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """The modules that were run; each leaves a folder, but for those named in `fails`."""
    ran, fails = [], set()

    def run(command, check):
        assert command[:2] == [sys.executable, "-m"] and check
        module = command[2].removeprefix("workers.training.")
        ran.append(module)
        if module in fails:
            raise subprocess.CalledProcessError(1, command)
        result = next(part for part in command if ".unfinished" in part)
        (tmp_path / "out" / result.split("/out/")[1].split("/")[0]).mkdir()

    monkeypatch.setattr(subprocess, "run", run)
    return ran, fails


def test_a_run_goes_on_where_the_one_before_it_stopped(commands, tmp_path):
    ran, fails = commands
    out = tmp_path / "out"
    out.mkdir()
    training = Run(tmp_path / "sources", out, (1, 1), 1)
    fails.add("train_talker")
    with pytest.raises(subprocess.CalledProcessError):
        training.run()
    before = [*ran]
    assert before[-1] == "train_talker"
    ran.clear()
    fails.clear()
    training.run()
    assert ran == ["train_talker", "export"]
    assert (out / "voice").is_dir() and not list(out.glob("*.unfinished"))


def test_commands_are_ones_that_the_modules_take(tmp_path):
    for name, command in Run(tmp_path / "sources", tmp_path, (1, 1), 1).steps():
        module, *arguments = command(tmp_path / name)
        asked = [sys.executable, "-m", f"workers.training.{module}", *arguments, "--help"]
        told = subprocess.run(asked, capture_output=True, text=True)
        assert told.returncode == 0, told.stderr
        flags = {argument for argument in arguments if argument.startswith("--")}
        assert not [flag for flag in flags if flag not in told.stdout]
