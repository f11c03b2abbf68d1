"""The tutorial's blocks, run as they stand by one shell on a real redis-server, do what it says."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"

pytestmark = [
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed"),
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
    pytest.mark.timeout(400),
]


BROKER, API = "6390", "8100"  # its ports


def blocks() -> tuple[list[str], int]:
    """What the page has one paste, on ports of this run's own; the broker's port."""
    told = PAGE.read_text().replace(". .venv/bin/activate", "")
    broker = free_port()
    for port, own in ((BROKER, broker), (API, free_port())):
        assert port in told
        told = told.replace(port, str(own))
    return re.findall(r"```sh\n(.*?)```", told, re.DOTALL), broker


def paste(blocks: list[str], folder: Path, broker: int) -> tuple[int, str]:
    """The shell's exit status and what it said; the first failure ends it. No process is left, whatever happens."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-c", "\n".join(["set -euo pipefail", *blocks])],
        cwd=folder, env=os.environ | {"PATH": path, "TMPDIR": str(folder)}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        told, _ = shell.communicate(timeout=380)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        told, _ = shell.communicate()
        pytest.fail(f"the tutorial does not end; it said\n{told}")
    finally:
        if shell.returncode != 0:
            subprocess.run(["pkill", "-KILL", "-s", str(shell.pid)], check=False)
            # Redis is a daemon, so of another session.
            subprocess.run(["redis-cli", "-p", str(broker), "shutdown", "nosave"], check=False, capture_output=True)
    return shell.returncode, told


def test_the_tutorial_is_true(tmp_path):
    pasted, broker = blocks()
    code, told = paste(pasted, tmp_path, broker)
    assert code == 0, told
    assert "the same bytes" in told
    assert "taken over" in told


def test_a_block_that_fails_leaves_no_broker(tmp_path):
    [first, *_], broker = blocks()
    pong = f"redis-cli -p {broker} ping"
    code, told = paste([first, f"until {pong}; do sleep 0.1; done", "false"], tmp_path, broker)
    assert code == 1 and "PONG" in told
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", broker)) != 0
