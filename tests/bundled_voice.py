"""The checkpoint that comes with Qwen3-TTS, for the tests of it."""

from __future__ import annotations

from workers.models.family import load_family

FAMILY = load_family("qwen3_tts")
FOLDER = FAMILY.bundled.folder


def files() -> dict[str, bytes]:
    """All that lies there, by path below the folder."""
    return {str(path.relative_to(FOLDER)): path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()}
