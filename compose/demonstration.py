"""`songline demo`: the whole road once. Serve, send the demo's text or song over HTTP, save its sound, stop."""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx

from compose.client import song_body
from compose.connecting import connected
from compose.hearing import hear
from compose.outlets import check_writable
from compose.port import listening_socket
from compose.trouble import FAILED, Trouble
from producer.orders import SONG_MODEL, speech

_READY_S = 300.0
_STOP_S = 30.0


def demo(args: argparse.Namespace) -> None:
    body = demo_body(args)
    kind = "song" if sings(args) else "speech"
    out = (args.out or Path(f"{kind}.wav")).resolve()
    check_writable(out)
    with serving(args) as url, connected(argparse.Namespace(url=url, api_key=None)) as songline:
        began = time.perf_counter()
        heard = hear(songline.submit(body), began, out=out)
    if heard.ended is not None:
        raise Trouble(f"the {kind} {heard.status}: {heard.ended.message}", FAILED)
    print(f"{kind:<16}  {out} ({heard.audio:.2f} s)")
    print(f"first audio       {heard.first_audio:.3f} s after it was sent")
    print(f"real-time factor  {heard.took / heard.audio:.3f} ({heard.took:.2f} s for {heard.audio:.2f} s of sound)")
    print(f"sha256            {hashlib.sha256(out.read_bytes()).hexdigest()}")


def sings(args: argparse.Namespace) -> bool:
    """Whether a song is asked for: lyrics or a caption are given, or the model is one that sings."""
    return args.lyrics is not None or args.caption is not None or args.model.startswith(SONG_MODEL)


def demo_body(args: argparse.Namespace) -> dict[str, Any]:
    """The request that the flags describe; where they say nothing, the demo's text or song, the same one every time."""
    texts = files("compose") / "demo"
    if not sings(args):
        text = (texts / "text.txt").read_text(encoding="utf-8").strip()
        return speech(text, model=args.model, seed=args.seed or 0, max_new_tokens=args.frames)
    lyrics = args.lyrics or str(texts / "lyrics.txt")
    caption = args.caption or (texts / "caption.txt").read_text(encoding="utf-8")
    return song_body(argparse.Namespace(**{**vars(args), "lyrics": lyrics, "caption": caption, "seed": args.seed or 0}))


@contextmanager
def serving(args: argparse.Namespace) -> Iterator[str]:
    """A `songline up` of the model on a free port, ready and open, for as long as the block runs: its URL."""
    with listening_socket("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
    flags = ["--host", "127.0.0.1", "--port", str(port), "--home", str(args.home), "--model", args.model]
    command = [sys.executable, "-m", "compose.cli", "up", *flags]
    server = subprocess.Popen(command, env={**os.environ, "SONGLINE_API_KEYS": ""})
    try:
        url = f"http://127.0.0.1:{port}"
        _await_ready(url, server)
        yield url
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()


def _await_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        if (code := server.poll()) is not None:
            raise Trouble(f"the server ended with code {code} before it was ready", FAILED)
        try:
            if httpx.get(f"{url}/ready", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise Trouble(f"the server was not ready within {_READY_S:g} s", FAILED)
