"""The authors' package of Qwen3-TTS, asked in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PYTHON = os.environ.get("SONGLINE_QWEN_TTS_PYTHON")
SCRIPT = Path(__file__).with_name("qwen3_tts_reference.py")

needs_judge = pytest.mark.skipif(
    not PYTHON, reason="SONGLINE_QWEN_TTS_PYTHON names no interpreter that has qwen-tts==0.1.1"
)


def ask_judge(question: str, *paths: Path) -> None:
    """Have it answer one of `qwen3_tts_reference.py`'s questions, from files and into files."""
    subprocess.run([PYTHON, SCRIPT, question, *paths], check=True)
