"""How much speech the event spine carries on this machine, whatever the models: stages that only sleep, all else real.

    python -m tests.bench.crowd [--listeners 64] [--rounds 6] [--step-ms 9] [--frames 60-120]

A real redis-server with every write synced, the real api, and a talker and an acoustic worker of Qwen3-TTS's family
whose steps and calls take as long as they would on a GPU. What is missing to the sound a second that such steps would
give is what the pipeline costs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from broker_schemas.connection import RedisBroker
from producer.bench import Load, Target, bench
from tests.bench.gpu import songs
from tests.bench.gpu.pipeline import served_by
from tests.redis_server import RedisServer, free_port
from tests.tiny_checkpoint import tiny_checkpoint
from tests.waiting import PATIENCE_S
from workers import run
from workers.models.family import Decoded, Window, load_family
from workers.settings import Settings, load
from workers.talker.frames import FrameHistory

MODEL = "qwen3_tts"
JOBS = 64
PREFILL_S = 0.004
CALL_S = {1: 0.003, 2: 0.0032, 4: 0.0045, 8: 0.0063, 16: 0.0095, 25: 0.014}  # by frames, of eight windows


class SleepingRunner:
    """Draws noise for all its jobs in a step; a prompt takes a step of its own, in turns with the others'."""

    def __init__(self, step_s: float) -> None:
        self.steps = 0
        self._step_s = step_s
        self._speaking: dict[str, FrameHistory] = {}
        self._prompted: dict[str, FrameHistory] = {}

    @property
    def free_jobs(self) -> int:
        return JOBS - len(self._speaking) - len(self._prompted)

    @property
    def idle(self) -> bool:
        return not (self._speaking or self._prompted)

    def profile(self) -> dict:
        return {}

    def admit(self, history: FrameHistory, prompts: list[list[int]]) -> None:
        self._prompted[history.job] = history

    def free(self, job: str) -> int:
        return sum(jobs.pop(job, None) is not None for jobs in (self._speaking, self._prompted))

    def step(self) -> list[FrameHistory]:
        self.steps += 1
        if self._prompted and (self.steps % 2 or not self._speaking):
            time.sleep(PREFILL_S)
            job = next(iter(self._prompted))
            self._speaking[job] = self._prompted.pop(job)
            return []
        time.sleep(self._step_s)
        codes = np.random.default_rng(self.steps).integers(0, 2000, (len(self._speaking), 16)).astype(np.int16)
        for history, own in zip(self._speaking.values(), codes, strict=True):
            history.add(own, np.empty(0, np.float32))
        return list(self._speaking.values())


class SleepingAcoustic:
    sample_rate, channels, width, keeps_state, batch = 24_000, 1, 0, False, 8

    def shape(self, frames: int, *, last: bool) -> tuple[int, ...]:
        return (next(length for length in CALL_S if length >= frames),)

    def windows(self, asked: Sequence[Window]) -> list[Decoded | None]:
        for window in asked:
            window.check()
        time.sleep(CALL_S[self.shape(len(asked[0].frames), last=True)[0]])
        return [
            Decoded(np.full((1920 * len(window.frames), 1), window.frames[0, 0], np.int16), {"any": 0})
            for window in asked
        ]


def _settings() -> Settings:
    overrides = {
        "talker": {"max_jobs": JOBS, "ready_limit": 2 * JOBS},
        "acoustic": {"max_num_seqs": JOBS, "max_num_batched_tokens": 26_624},
    }
    return load(MODEL, tiny_checkpoint(MODEL), overrides=overrides, platform="cpu")


def talker(url: str, step_ms: str) -> None:
    settings, family = _settings(), load_family(MODEL)
    model = family.talker(settings.checkpoint, {"max_jobs": JOBS}, None)
    loaded = run.LoadedTalker(model, SleepingRunner(float(step_ms) / 1000), profile="sleeping talker")
    run.run_talker(RedisBroker(url), settings, threading.Event(), loaded=loaded)


def acoustic(url: str) -> None:
    loaded = run.LoadedAcoustic(SleepingAcoustic(), profile="sleeping acoustic stage")
    run.run_acoustic(RedisBroker(url), _settings(), threading.Event(), loaded=loaded)


def measure(listeners: int, rounds: int, step_ms: float, frames: tuple[int, int]) -> dict:
    """The level's figures: see `producer.bench.summary`."""
    with tempfile.TemporaryDirectory() as kept:
        folder, port, checkpoint = Path(kept), free_port(), str(tiny_checkpoint(MODEL))
        server = RedisServer(folder)
        front = ("--broker", server.url, "--model", MODEL, "--checkpoint", checkpoint, "--port", str(port))
        modules = {
            "api": ("compose.cli", "api", *front),
            "talker": ("tests.bench.crowd", "talker", server.url, str(step_ms)),
            "acoustic": ("tests.bench.crowd", "acoustic", server.url),
        }
        try:
            with served_by(modules, port, folder, time.monotonic() + PATIENCE_S) as url:
                target = Target(url, {"model": None, **songs.body(MODEL, frames[1], verses=2)}, frames=frames)
                report = asyncio.run(bench(target, [Load(rounds * listeners, listeners)], warm_up=1))
        finally:
            server.kill()
    return report["levels"][0]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.crowd", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--listeners", type=int, default=JOBS)
    parser.add_argument("--rounds", type=int, default=6, help="requests of each listener (default: 6)")
    parser.add_argument("--step-ms", type=float, default=9.0, help="of the talker (default: 9)")
    parser.add_argument("--frames", default="60-120", help="of a request, from and to (default: 60-120)")
    args = parser.parse_args()
    least, most = (int(number) for number in args.frames.split("-"))
    level = measure(args.listeners, args.rounds, args.step_ms, (least, most))
    first, gap = level["first_audio_s"], level["longest_gap_s"]
    print(f"{level['ok']} utterances, {level['failed']} failed, in {level['wall_s']:.1f} s")
    print(f"{level['audio_s_per_s']:.1f} s of sound a second; if the talker's steps were all: ", end="")
    print(f"{0.08 * args.listeners / (args.step_ms / 1000):.0f}")
    print(f"first sound after {first['p50']:.2f} s (p95 {first['p95']:.2f}), longest gap {gap:.2f} s")


if __name__ == "__main__":
    if sys.argv[1:2] in (["talker"], ["acoustic"]):
        globals()[sys.argv[1]](*sys.argv[2:])
    else:
        main()
