"""A talker's decoder as an engine takes it: a folder of its own, and a check of what the engine would not notice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from workers.checkpoints import CheckpointError, fill_module, stated_shapes, weight_files
from workers.models.family import Backbone
from workers.runners.torch_qwen3 import Qwen3, Qwen3Config


def check_backbone(backbone: Backbone) -> int:
    """Hold the decoder's files against its config, without reading them: vLLM would serve what is not there.

    Returns:
        The positions that it was made for.

    Raises:
        CheckpointError: it is not whole, has tensors too many, or is no Qwen3.
    """
    stated, component = backbone.config, backbone.component
    if (kind := stated.get("model_type")) != "qwen3":
        raise CheckpointError(f"{component}/config.json has model_type {kind!r}: the engine's model is a qwen3")
    stored = stated_shapes(backbone.checkpoint, component)
    own = {name: shape for name, shape in stored.items() if not name.startswith(backbone.beside)}
    fill_module(_as_stored(backbone), own, component)
    return stated.get("max_position_embeddings", 32_768)  # transformers' own default


def _as_stored(backbone: Backbone) -> nn.Module:
    """The decoder on "meta", under the names that the files have."""
    with torch.device("meta"):
        module: nn.Module = Qwen3(Qwen3Config.from_json(backbone.config))
    table = module._modules.pop("embed_tokens")
    module.add_module(backbone.embed, table)
    for name in reversed(backbone.prefix.rstrip(".").split(".")):
        module = nn.ModuleDict({name: module})
    return module


@contextmanager
def engine_folder(backbone: Backbone) -> Iterator[Path]:
    """A model's folder for as long as the block runs: the decoder's config, and links to the weights' files."""
    with TemporaryDirectory(prefix="songline-backbone-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(backbone.config))
        for file in weight_files(backbone.checkpoint, backbone.component):
            (folder / file.name).symlink_to(file.resolve())
        yield folder
