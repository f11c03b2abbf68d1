"""The tutorial's blocks, run as they stand by one shell on a real redis-server, do what it says."""

from __future__ import annotations

import os
import re
import shutil
import signal
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


def script() -> str:
    """All blocks, on ports of this run's own; the first failure ends it."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    told = "\n".join(blocks).replace(". .venv/bin/activate", "")
    for port in ("6390", "8100"):
        assert port in told
        told = told.replace(port, str(free_port()))
    return f"set -euo pipefail\n{told}"


def test_the_tutorial_is_true(tmp_path):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    shell = subprocess.Popen(
        ["bash", "-c", script()], cwd=tmp_path, env=environment, text=True, start_new_session=True,
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
    assert shell.returncode == 0, told
    assert "the same bytes" in told
    assert "taken over" in told
