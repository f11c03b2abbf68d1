"""Songs for runners under test, and how they are sung: MiniMax-Music3 at its tiny size."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from broker_schemas.events import JobRequested
from workers.talker.frames import FrameHistory

FRAMES = 24


def song(
    seed: int, *, job: str | None = None, frames: int = FRAMES, forced: np.ndarray | None = None, sent: int = 0
) -> FrameHistory:
    """Each seed has a prompt of its own length, some longer than a prefill chunk."""
    params = {"instructions": "a slow waltz", "max_new_tokens": frames, "async_chunk": True}
    request = JobRequested(
        model="minimax_music3", input="[verse]\n" + "la " * (1 + 17 * (seed % 8)), params=params, seed=seed, owner="o",
        deadline=0, ttl_ms=1,
    )  # fmt: skip
    forced = np.empty((0, 8), np.int16) if forced is None else forced
    return FrameHistory(job or f"job_{seed}", request, frames, lead=1, forced=forced, sent=sent)


def admit(runner, talker, history: FrameHistory) -> FrameHistory:
    runner.admit(history, talker.prompts(history.request, history.reference, history.context))
    return history


def finish(runner, history: FrameHistory) -> FrameHistory:
    while history.reason is None:
        runner.step()
    runner.free(history.job)
    return history


def sung(history: FrameHistory) -> tuple[bytes, bytes, str | None]:
    """Codes, conditioning, and why it ended."""
    return np.stack(history.codes).tobytes(), np.stack(history.waiting).tobytes(), history.reason


def arrays(song: tuple[bytes, bytes, str | None]) -> tuple[np.ndarray, np.ndarray]:
    """Of what `sung` gives: codes (draws, 8) int16, and conditioning (frames, width) float32, one row fewer."""
    codes = np.frombuffer(song[0], np.int16).reshape(-1, 8)
    return codes, np.frombuffer(song[1], np.float32).reshape(len(codes) - 1, -1)


def come_and_go(
    runner, make: Callable[[int], FrameHistory], alone: dict[int, tuple[bytes, bytes, str | None]], seed: int
) -> None:
    """All jobs of `alone` in a random order, each held against itself alone, among passers-by who take slots and leave
    in the middle, being prefilled or drawn; nobody is there afterwards.
    """
    rng = random.Random(seed)
    waiting = [make(number) for number in alone]
    rng.shuffle(waiting)
    passers = iter(range(100, 200))
    there, passing = [], []
    while waiting or there:
        if waiting and runner.free_jobs and rng.random() < 0.3:
            there.append(admit(runner, runner.model, waiting.pop()))
        if runner.free_jobs > 2 and rng.random() < 0.2:
            passing.append(admit(runner, runner.model, make(next(passers))))
        runner.step()
        for history in [history for history in there if history.reason]:
            assert runner.free(history.job) == runner.model.rows
            there.remove(history)
            assert sung(history) == alone[history.request.seed]
        for history in [history for history in passing if rng.random() < 0.1]:
            passing.remove(history)
            assert runner.free(history.job) == runner.model.rows
    for history in passing:
        runner.free(history.job)
    assert runner.idle
