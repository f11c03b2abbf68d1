"""Weights between training runs: bfloat16, in files small enough for any transfer.

An optimiser starts anew from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

_FILE_BYTES = 15_000_000
_EXACT = ("cluster_usage", "embedding_sum")  # averages, which bfloat16 would bend


def save_weights(folder: Path, name: str, modules: Mapping[str, nn.Module]) -> None:
    """Write `<name>-<number>.safetensors`, whose tensors are named `<module>.<parameter>`."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{name}-*.safetensors"):
        old.unlink()
    batch: dict[str, Tensor] = {}
    size = number = 0
    for key, tensor in _named(modules):
        tensor = tensor.detach().cpu().contiguous()
        if not key.endswith(_EXACT):
            tensor = tensor.to(torch.bfloat16)
        if batch and size + tensor.nbytes > _FILE_BYTES:
            save_file(batch, folder / f"{name}-{number:02}.safetensors")
            batch, size, number = {}, 0, number + 1
        batch[key] = tensor
        size += tensor.nbytes
    save_file(batch, folder / f"{name}-{number:02}.safetensors")


def load_weights(folder: Path, name: str, modules: Mapping[str, nn.Module]) -> None:
    """Read what `save_weights` wrote, all of it; raises FileNotFoundError, or RuntimeError for a strange tensor."""
    files = sorted(folder.glob(f"{name}-*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no {name}-*.safetensors")
    stored = {key: tensor for file in files for key, tensor in load_file(file).items()}
    for prefix, module in modules.items():
        own = {key.removeprefix(f"{prefix}."): value for key, value in stored.items() if key.startswith(f"{prefix}.")}
        module.load_state_dict({key: value.float() for key, value in own.items()})


def _named(modules: Mapping[str, nn.Module]) -> list[tuple[str, Tensor]]:
    return [
        (f"{prefix}.{key}", value) for prefix, module in modules.items() for key, value in module.state_dict().items()
    ]
