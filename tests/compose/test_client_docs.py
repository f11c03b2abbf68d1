"""Every Python block of docs/client.md runs as it stands, against servers as it says to start them."""

import re
from pathlib import Path

import pytest

from tests.compose.conftest import serving
from tests.tiny_checkpoint import tiny_checkpoint

ROOT = Path(__file__).parents[2]
SPEECH, SONGS = "http://127.0.0.1:8000", "http://127.0.0.1:8001"
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "client.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def urls(tiny):
    """Where the documentation's servers really are."""
    with (
        serving("up", "--model", "qwen3_tts", "--checkpoint", tiny_checkpoint("qwen3_tts")) as (_, speech),
        serving("up", "--model", "minimax_music3", "--checkpoint", tiny) as (_, songs),
    ):
        yield {SPEECH: speech, SONGS: songs}


@pytest.mark.parametrize("block", BLOCKS, ids=[f"block {number}" for number in range(len(BLOCKS))])
def test_a_block_runs(block, urls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for shown, real in urls.items():
        block = block.replace(shown, real)
    exec(compile(block, "docs/client.md", "exec"), {"__name__": "docs"})
    saved = set() if "JobEnded" in block else set(re.findall(r'save\("([^"]+)"\)', block))
    assert saved <= {path.name for path in tmp_path.iterdir()}
    assert "JobEnded" not in block or not any(tmp_path.iterdir())


def test_there_are_blocks_for_both_kinds_of_model():
    assert len(BLOCKS) >= 5
    assert any(SONGS in block for block in BLOCKS) and any(SPEECH in block for block in BLOCKS)
