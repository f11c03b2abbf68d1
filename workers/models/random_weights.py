"""Random weights for checkpoints that we make ourselves: how a tensor is drawn, and how shards are written.

Every tensor is drawn by itself, from the seed and its name, and shards are written one at a time: a large checkpoint
never stands in memory whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

_SHARD_BYTES = 4 * 1024**3


@dataclass(frozen=True, slots=True)
class Weight:
    """How a tensor is drawn: normal(mean, std), `eye` added on its diagonal, row `row` times `factor`."""

    name: str
    shape: tuple[int, ...]
    std: float = 0.0
    mean: float = 0.0
    eye: float = 0.0
    row: int | None = None
    factor: float = 1.0

    def draw(self, component: str, seed: int, device: torch.device) -> Tensor:
        """float32, the same for the same seed, component, name and kind of device."""
        key = hashlib.sha256(f"{seed}/{component}/{self.name}".encode()).digest()
        generator = torch.Generator(device).manual_seed(int.from_bytes(key[:8], "little") >> 1)
        if self.std:
            tensor = torch.randn(self.shape, generator=generator, device=device).mul_(self.std).add_(self.mean)
        else:
            tensor = torch.full(self.shape, self.mean, device=device)
        if self.eye:
            tensor.flatten(1).diagonal().add_(self.eye)
        if self.row is not None:
            tensor[self.row] *= self.factor
        return tensor


def check_new(folder: Path, size: str, sizes: Collection[str]) -> None:
    """Whether a checkpoint of this size may be made there.

    Raises:
        ValueError: no such size.
        FileExistsError: the folder holds something.
    """
    if size not in sizes:
        raise ValueError(f"no size {size!r}; there are: {', '.join(sizes)}")
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty")


def write_shards(folder: Path, stem: str, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write one safetensors file, or shards with an index, holding one shard in memory at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[tuple[Path, list[str]]] = []
    total = 0
    for shard in _shards(tensors):
        path = folder / f"shard-{len(written)}"
        save_file({name: tensor.cpu().contiguous() for name, tensor in shard.items()}, path, metadata={"format": "pt"})
        written.append((path, list(shard)))
        total += sum(tensor.nbytes for tensor in shard.values())
    if len(written) == 1:
        written[0][0].rename(folder / f"{stem}.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number, (path, names) in enumerate(written, start=1):
        name = f"{stem}-{number:05}-of-{len(written):05}.safetensors"
        path.rename(folder / name)
        weight_map |= dict.fromkeys(names, name)
    write_json(folder / f"{stem}.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _shards(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    held = 0
    for name, tensor in tensors:
        if shard and held + tensor.nbytes > _SHARD_BYTES:
            yield shard
            shard, held = {}, 0
        shard[name] = tensor
        held += tensor.nbytes
    yield shard


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
