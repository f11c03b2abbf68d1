"""Random checkpoints are loaded by the authors' package itself, every tensor by its name and shape."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from workers.checkpoints import stated_shapes
from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.checkpoint import make_checkpoint

PYTHON = os.environ.get("SONGLINE_QWEN_TTS_PYTHON")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="SONGLINE_QWEN_TTS_PYTHON names no interpreter that has qwen-tts==0.1.1"
)


@pytest.mark.parametrize("size", ["tiny", "tiny-base"])
def test_layout(size, tmp_path) -> None:
    folder, shapes = tmp_path / "checkpoint", tmp_path / "shapes.json"
    make_checkpoint(folder, size, 0)
    script = Path(__file__).with_name("qwen3_tts_reference.py")
    subprocess.run([PYTHON, script, "state_shapes", folder, shapes], check=True)
    ours = {name: list(tensor.shape) for name, tensor in stated_shapes(folder, config.TOP).items()}
    sound = stated_shapes(folder, config.SPEECH_TOKENIZER)
    ours |= {f"{config.SPEECH_TOKENIZER}/{name}": list(tensor.shape) for name, tensor in sound.items()}
    assert ours == json.loads(shapes.read_text())
