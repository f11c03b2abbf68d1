"""The random checkpoint that is measured: songs never end by themselves in it, so that every length can be had."""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import time
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from workers.models.family import load_family

# By family: the component that has the head, the head's name there, and the end's row of it.
_ENDS = {
    "minimax_music3": ("language_model", "lm_head.weight", 151_670),
    "qwen3_tts": (".", "talker.codec_head.weight", 2_150),
}


def prepare(folder: Path, family: str, size: str) -> float:
    """Make it where it is not; seconds that it took."""
    began = time.perf_counter()
    if (folder / "whole").exists():
        return 0.0
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if torch.cuda.is_available():
        make = importlib.import_module(f"workers.models.{family}.checkpoint").make_checkpoint
        make(folder, size, 0, device="cuda")
        torch.cuda.empty_cache()
    else:
        load_family(family).make_checkpoint(folder, size, 0)
    _never_end(folder, *_ENDS[family])
    _name_by_content(folder)
    (folder / "whole").touch()
    return time.perf_counter() - began


def _never_end(folder: Path, component: str, head: str, end: int) -> None:
    """Zero the end token's row of the head: its logit is then 0, far below the fiftieth of the codes'."""
    shard = _shard_of(head, folder / component)
    with safe_open(shard, framework="pt") as opened:
        weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    weights[head][end] = 0
    unfinished = shard.with_suffix(".unfinished")
    save_file(weights, unfinished, metadata={"format": "pt"})
    unfinished.replace(shard)


def _shard_of(weight: str, folder: Path) -> Path:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return folder / "model.safetensors"
    return folder / json.loads(index.read_text())["weight_map"][weight]


def _name_by_content(folder: Path) -> None:
    """Large files as Hugging Face's cache has them, by digest: each process would read all of them for its profile."""
    blobs = folder / "blobs"
    blobs.mkdir()
    for file in sorted(folder.glob("**/*.safetensors")):
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        file.replace(blobs / digest)
        file.symlink_to(blobs.resolve() / digest)
