"""The checkpoint that comes with Qwen3-TTS: whole, what its card states, and where people get it from."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

import pytest
import torch

from tests.bundled_voice import FAMILY, FOLDER, files
from workers.checkpoints import stated_shapes
from workers.models.qwen3_tts import config
from workers.run import load_acoustic, load_talker
from workers.settings import load

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker_schemas", "producer", "workers", "api", "compose")
CARD = "README.md"
MOST_BYTES = 50_000_000  # of what everybody who clones the repository gets


def test_it_is_loaded_strictly_by_its_own_deploy_file():
    settings = load(FAMILY.bundled.config, FOLDER)
    assert load_talker(settings).runner.profile()["runner"] == "torch"
    assert load_acoustic(settings).model.sample_rate == config.SAMPLE_RATE


def test_it_speaks_english_by_one_voice_of_its_own_and_reads_phonemes():
    stated = config.load_config(FOLDER)
    assert (stated.task, len(stated.speakers)) == (config.CUSTOM_VOICE, 1)
    assert stated.front_end is not None and "english" in stated.spoken_languages
    assert FAMILY.contract(FOLDER, 8192).accept({"input": "Hello."}).params["voice"] in stated.speakers


def test_it_is_small():
    assert sum(map(len, files().values())) < MOST_BYTES


# --- the card ---------------------------------------------------------------------------------------------------------


def test_the_card_states_each_file_with_its_hash():
    """A line of the card has the path in backticks, and then the sha256."""
    there = files()
    card = there.pop(CARD).decode()
    stated = dict(re.findall(r"`([\w./-]+)`[^\n]*?\b([0-9a-f]{64})\b", card))
    found = {path: hashlib.sha256(content).hexdigest() for path, content in there.items()}
    assert stated == found, "\n".join(f"| `{path}` | `{digest}` |" for path, digest in sorted(found.items()))


def test_the_card_states_how_many_parameters_there_are():
    """As in "19,912,345 parameters": of all tensors together."""
    shapes = [*stated_shapes(FOLDER, config.TOP).values(), *stated_shapes(FOLDER, config.SPEECH_TOKENIZER).values()]
    found = sum(map(torch.Tensor.numel, shapes))
    stated = re.findall(r"([\d,]+) parameters", files()[CARD].decode())
    assert stated[:1] == [f"{found:,}"]


# --- where it gets to -------------------------------------------------------------------------------------------------


def test_it_is_in_the_wheel(tmp_path):
    source = tmp_path / "source"  # a build leaves folders behind
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(tmp_path)!r})"
    told = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    [wheel] = tmp_path.glob("*.whl")
    place = FOLDER.relative_to(ROOT)
    with zipfile.ZipFile(wheel) as packed:
        within = {str(PurePath(name).relative_to(place)): packed.read(name) for name in packed.namelist()
                  if PurePath(name).is_relative_to(place)}  # fmt: skip
    assert within == files()


def test_it_is_in_the_context_that_the_image_is_built_from():
    patterns = (ROOT / ".dockerignore").read_text().split()
    for path in files():
        assert not ignored_by_docker(FOLDER.relative_to(ROOT) / path, patterns), path
    assert ignored_by_docker(PurePath("docs/design.md"), patterns)
    assert ignored_by_docker(PurePath("workers/models/__pycache__/family.pyc"), patterns)


def ignored_by_docker(path: PurePath, patterns: list[str]) -> bool:
    """The last pattern counts that fits the path, or a folder that it lies in."""
    places = [str(place) for place in (path, *path.parents)][:-1]
    ignored = False
    for pattern in patterns:
        fitting = pattern.removeprefix("!").replace("**/", "*")
        if any(fnmatchcase(place, fitting) for place in places):
            ignored = not pattern.startswith("!")
    return ignored


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the tests run from no clone")
def test_git_keeps_all_of_it():
    paths = [str(FOLDER / path) for path in files()]
    told = subprocess.run(["git", "check-ignore", *paths], cwd=ROOT, capture_output=True, text=True)
    assert told.stdout == ""
