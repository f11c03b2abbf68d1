"""The whole pipeline under load: a broker and a process for each role, and listeners over HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import yaml

from producer.bench import BadServer, Load, Target, bench
from producer.bench_table import same_bytes
from tests.bench.gpu import songs
from tests.bench.gpu.bench import Bench, NotRun
from tests.redis_server import BINARY, RedisServer, free_port

_READY_S = 300.0
_STOP_S = 30.0


def pipeline(run: Bench) -> None:
    """Point 5: sound a second, the first sound, the longest gap; V1 beside V2."""
    rows, notes = [], []
    if BINARY is None:
        notes.append("no redis-server here: the broker is fakeredis behind a port, which is slower and keeps nothing")
    for runner in run.runners:
        try:
            _serve(run, runner, rows, notes)
        except NotRun as error:
            notes.append(run.fail("pipeline", runner, error))
        run.put("pipeline", rows, notes)


def _serve(run: Bench, runner: str, rows: list[dict[str, Any]], notes: list[str]) -> None:
    least, most = run.plan.served
    body = {"model": None, **songs.body(run.family, most, verses=2)}

    def note(level: dict[str, Any]) -> None:
        notes.append(f"{runner}, {level['concurrency']} listeners: {'; '.join(work.since())}")
        rows.append(
            {
                "runner": runner, "listeners": level["concurrency"], "ok": level["ok"], "failed": level["failed"],
                "audio s/s": level["audio_s_per_s"], "first audio p50": level["first_audio_s"]["p50"],
                "p95": level["first_audio_s"]["p95"], "p99": level["first_audio_s"]["p99"],
                "longest gap": level["longest_gap_s"],
                "silence": level["underrun"]["total_s"], "silence p95": level["underrun"]["p95_s"],
            }
        )  # fmt: skip
        run.put("pipeline", rows, notes)

    with serving(run, runner) as url:
        work = Work(url)
        loads = [Load(run.plan.requests(at_once), at_once) for at_once in run.plan.listeners]
        left = run.deadline - time.monotonic()
        try:
            target = Target(url, body, frames=(least, most))
            report = asyncio.run(asyncio.wait_for(bench(target, loads, warm_up=1, done=note), left))
        except (BadServer, TimeoutError) as error:
            raise NotRun(str(error) or "out of time") from error
        notes.append(f"{runner}: {same_bytes(report['levels'])}")
        song = report["levels"][0]["results"][0]
        for way, sha256 in other_ways(url, target.request(song["seed"])).items():
            notes.append(f"{runner}, {way}: {'the same bytes' if sha256 == song['sha256'] else 'bytes DIFFER'}")


class Work:
    """What the workers of a server do, from one look to the next. Heartbeats tell it, so it lags by one."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._at, self._done = self._look()

    def since(self) -> list[str]:
        """Of each worker: how much of its time it was in steps or calls, how many, and how full they were."""
        at, done = self._look()
        told = []
        for worker, (role, now) in done.items():
            _, before = self._done.get(worker, (role, {}))
            did = {what: number - before.get(what, 0) for what, number in now.items()}
            turns, filled = ("steps", "draws") if role == "talker" else ("calls", "windows")
            busy_ms, count = did["busy_ms"], max(1, did[turns])
            told.append(
                f"{role} busy {busy_ms / (10 * max(1e-3, at - self._at)):.0f}%, {did[turns]} {turns} of "
                f"{busy_ms / count:.1f} ms and {did[filled] / count:.1f} {filled}"
            )
        self._at, self._done = at, done
        return told

    def _look(self) -> tuple[float, dict[str, tuple[str, dict[str, int]]]]:
        told = httpx.get(f"{self._url}/v1/pipeline", timeout=30).raise_for_status().json()
        return time.monotonic(), {one["worker"]: (one["role"], one["done"]) for one in told["workers"]}


def other_ways(url: str, body: dict[str, Any]) -> dict[str, str]:
    """sha256 of a song's PCM, had in other ways than as a stream of windows."""
    with httpx.Client(base_url=url, timeout=None) as client:
        whole = client.post("/v1/audio/speech", json={**body, "response_format": "pcm"}).raise_for_status()
        job = client.post("/v1/jobs", json={**body, "async_chunk": False}).raise_for_status().json()["id"]
        late = client.get(f"/v1/jobs/{job}/stream", params={"format": "pcm"}).raise_for_status()
    ways = {"not streamed": whole, "async_chunk: false": late}
    return {name: hashlib.sha256(answer.content).hexdigest() for name, answer in ways.items()}


@contextmanager
def serving(run: Bench, runner: str) -> Iterator[str]:
    """A ready server's URL, for as long as the block runs. Raises NotRun."""
    folder = run.out / "pipeline" / runner
    folder.mkdir(parents=True, exist_ok=True)
    deploy = folder / "deploy.yaml"
    deploy.write_text(yaml.safe_dump({"base_config": run.config, **run.tree(runner)}))
    port = free_port()
    model = ("--checkpoint", str(run.checkpoint), "--config", str(deploy))
    front = ("--port", str(port))
    with ExitStack() as stack:
        broker = ("--broker", stack.enter_context(_broker(folder)))
        roles = {"api": (*broker, *model, *front), "talker": (*broker, *model), "acoustic": (*broker, *model)}
        modules = {role: ("compose.cli", role, *flags) for role, flags in roles.items()}
        until = min(run.deadline, time.monotonic() + _READY_S)
        yield stack.enter_context(served_by(modules, port, folder, until))


@contextmanager
def served_by(modules: dict[str, tuple[str, ...]], port: int, folder: Path, until: float) -> Iterator[str]:
    """The URL of a server made up of these modules, by role, once it is ready; their logs go to the folder.

    Raises:
        NotRun: one ended, or they were not ready by `until`, on the clock of `time.monotonic`.
    """
    with ExitStack() as stack:
        processes = {
            role: stack.enter_context(_process(module, folder / f"{role}.log")) for role, module in modules.items()
        }
        url = f"http://127.0.0.1:{port}"
        _await_ready(url, processes, until, folder)
        yield url


@contextmanager
def _broker(folder: Path) -> Iterator[str]:
    """An empty broker's URL."""
    if BINARY:
        with tempfile.TemporaryDirectory() as kept:
            server = RedisServer(Path(kept))
            try:
                yield server.url
            finally:
                server.kill()
        return
    port = free_port()
    with _process(("tests.bench.gpu.broker", str(port)), folder / "broker.log"):
        _await_port(port)
        yield f"redis://127.0.0.1:{port}/0"


def _await_port(port: int) -> None:
    for _ in range(600):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise NotRun(f"no broker at port {port}")


@contextmanager
def _process(module: tuple[str, ...], log: Path) -> Iterator[subprocess.Popen]:
    """`python -m` the module, until the block ends."""
    command = [sys.executable, "-m", *module]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SONGLINE_")}
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_ready(url: str, processes: dict[str, subprocess.Popen], until: float, folder: Path) -> None:
    while time.monotonic() < until:
        for role, process in processes.items():
            if (code := process.poll()) is not None:
                raise NotRun(f"the {role} ended with code {code} before it was ready ({folder / role}.log)")
        try:
            if httpx.get(f"{url}/ready", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise NotRun(f"not ready in time ({folder})")
