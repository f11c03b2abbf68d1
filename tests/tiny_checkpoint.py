"""A tiny random checkpoint, written once a test run and never changed; and other words in a copy's configs."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from workers.models.family import load_family


@cache
def tiny_checkpoint(family: str = "minimax_music3", seed: int = 0, size: str = "tiny") -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tiny-checkpoint-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    load_family(family).make_checkpoint(folder, size, seed)
    return folder


def restate(path: Path, *section: str, **changes: Any) -> None:
    """Change fields of a config, or of a section in it."""
    stated = json.loads(path.read_text())
    within = stated
    for name in section:
        within = within[name]
    within |= changes
    path.write_text(json.dumps(stated))
