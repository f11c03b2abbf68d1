"""A checkpoint, and servers as a user starts them: the real command, in processes of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest

from compose import checkpoint
from tests.ports import free_port
from tests.waiting import PATIENCE_S
from workers.models.minimax_music3.checkpoint import SIZES

# Where there is a GPU too: a tiny checkpoint is served without one.
os.environ.setdefault("SONGLINE_PLATFORM", "cpu")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A tiny random checkpoint, whose songs end at their max_new_tokens and never before."""
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "tiny", replace(SIZES["tiny"], end_scale=0.0))
        checkpoint.make("minimax_music3", "tiny", 0, folder)
    return folder


http = httpx.Client(timeout=PATIENCE_S)


def songline(*argv, binary=False, **options):
    """Start the command; `wait()` or `communicate()` for its end."""
    command = [sys.executable, "-m", "compose.cli", *map(str, argv)]
    return subprocess.Popen(command, text=not binary, preexec_fn=_heed_interrupts, **options)


def _heed_interrupts() -> None:
    """As a terminal's programs do: whoever runs the tests in the background has SIGINT ignored, and all below it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(*argv, url=None, stdin=None):
    """A command's (exit code, output, errors)."""
    flags = ["--url", url] if url else []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.PIPE}
    process = songline(*argv, *flags, **pipes)
    out, err = process.communicate(stdin, timeout=PATIENCE_S)
    return process.returncode, out, err


@contextmanager
def serving(*argv, environ=()):
    """A server by its command line, ready: (process, URL). It is stopped at the end, if it still runs."""
    port = free_port()
    process = songline(*argv, "--port", port, env={**os.environ, **dict(environ)})
    try:
        url = f"http://127.0.0.1:{port}"
        await_ready(url, process)
        yield process, url
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()


def await_ready(url, process, timeout_s=180):
    deadline = time.monotonic() + timeout_s
    answer = None
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended before it was ready"
        try:
            answer = http.get(f"{url}/ready", timeout=PATIENCE_S)
            if answer.status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"not ready within {timeout_s} s: {answer and json.dumps(answer.json())}")
