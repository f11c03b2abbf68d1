"""A tiny random checkpoint, written once a test run and never changed."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from workers.models.family import load_family


@cache
def tiny_checkpoint(family: str = "minimax_music3", seed: int = 0, size: str = "tiny") -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tiny-checkpoint-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    load_family(family).make_checkpoint(folder, size, seed)
    return folder
