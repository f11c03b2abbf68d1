"""What an engine would not notice: a backbone whose weights are not those that its config names."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from workers.checkpoints import CheckpointError, component_config, fill_module, stated_shapes
from workers.runners.torch_qwen3 import Qwen3, Qwen3Config


def check_backbone(checkpoint: Path, component: str) -> int:
    """Hold a Qwen3ForCausalLM's files against its config, without reading them: vLLM would serve what is not there.

    Returns:
        The positions that it was made for.

    Raises:
        CheckpointError: it is not whole, has tensors too many, or is no Qwen3.
    """
    stated = component_config(checkpoint, component)
    if (kind := stated.get("model_type")) != "qwen3":
        raise CheckpointError(f"{component}/config.json has model_type {kind!r}: the engine's model is a qwen3")
    config = Qwen3Config.from_json(stated)
    with torch.device("meta"):
        model = nn.ModuleDict({"model": Qwen3(config)})
        if not config.tie_word_embeddings:
            model["lm_head"] = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
    fill_module(model, stated_shapes(checkpoint, component), component)
    return stated.get("max_position_embeddings", 32_768)  # transformers' own default
