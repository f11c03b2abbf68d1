"""Random checkpoints are loaded by the authors' package itself, every tensor by its name and shape."""

from __future__ import annotations

import json

import pytest

from tests.parity.judge import ask_judge, needs_judge
from workers.checkpoints import stated_shapes
from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.checkpoint import make_checkpoint

pytestmark = needs_judge


@pytest.mark.parametrize("size", ["tiny", "tiny-base"])
def test_layout(size, tmp_path) -> None:
    folder, shapes = tmp_path / "checkpoint", tmp_path / "shapes.json"
    make_checkpoint(folder, size, 0)
    ask_judge("state_shapes", folder, shapes)
    ours = {name: list(tensor.shape) for name, tensor in stated_shapes(folder, config.TOP).items()}
    sound = stated_shapes(folder, config.SPEECH_TOKENIZER)
    ours |= {f"{config.SPEECH_TOKENIZER}/{name}": list(tensor.shape) for name, tensor in sound.items()}
    assert ours == json.loads(shapes.read_text())
