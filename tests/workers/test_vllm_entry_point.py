"""vLLM finds the talker by itself, in every process that starts an engine where Songline is installed."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GROUP = "vllm.general_plugins"
ASK = """
from vllm.plugins import load_general_plugins
from vllm import ModelRegistry
load_general_plugins()
load_general_plugins()
assert "SonglineTalker" in ModelRegistry.get_supported_archs(), ModelRegistry.get_supported_archs()
"""


@pytest.mark.vllm
def test_vllm_knows_the_model_once_songline_is_installed(tmp_path):
    """Installed, as far as vLLM sees it: by the metadata that an installer makes of pyproject.toml."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    metadata = tmp_path / "songline_as_declared-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: songline-as-declared\nVersion: 0\n")
    lines = "".join(f"{name} = {target}\n" for name, target in stated.items())
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    told = subprocess.run(
        [sys.executable, "-c", ASK], env={**os.environ, "PYTHONPATH": path, "VLLM_PLUGINS": "songline"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
