"""One measurement in a process of its own: an engine's modes hold for the whole process, and a crash takes only it.

    python -m tests.bench.gpu.work TASK.json ROWS.jsonl

A task names the work, the deploy file's overrides and the work's arguments. Each row is written as soon as it is known.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from broker_schemas.events import JobRequested
from tests.bench.gpu import kernels
from tests.bench.gpu.playing import Stage
from tests.bench.gpu.songs import Scenario, Song, Visit
from workers import run
from workers.models.family import Window, load_family
from workers.settings import Settings, load
from workers.talker.frames import FrameHistory

_WARM_UP_STEPS = 20
_PROFILED_STEPS = 5


def _memory() -> dict[str, float]:
    """GiB: what torch took at most, and what is taken of the card now, by whomever."""
    if not torch.cuda.is_available():
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"peak_gib": torch.cuda.max_memory_reserved() / 2**30, "card_gib": (total - free) / 2**30}


def play(settings: Settings, scenarios: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row about the runner, then one a scenario."""
    began = time.perf_counter()
    stage = Stage(run.load_talker(settings), _requests(settings))
    yield {"loaded_s": time.perf_counter() - began, "profile": stage.talker.runner.profile()}
    for scenario in scenarios:
        yield stage.play(_scenario(**scenario))
    yield {"memory": _memory()}


def _requests(settings: Settings) -> Callable[[Song], JobRequested]:
    family = load_family(settings.family)
    contract = family.contract(settings.checkpoint, settings.talker.max_model_len)
    return lambda song: song.request(family.name, contract)


def _scenario(name: str, visits: list[dict[str, Any]], memory: float | None) -> Scenario:
    return Scenario(name, tuple(Visit(**{**visit, "song": Song(**visit["song"])}) for visit in visits), memory)


def steps(settings: Settings, at_once: list[int], measured: int) -> Iterator[dict[str, Any]]:
    """A row for each number of songs: the step's time as the worker sees it, and its parts on the card."""
    talker = run.load_talker(settings)
    requests = [_requests(settings)(Song(number, measured + 200)) for number in range(max(at_once))]
    for songs in at_once:
        yield {"songs": songs, **_timed(talker, requests[:songs], measured), **_memory()}
        for number in range(songs):
            talker.runner.free(f"step/{number}")


def _timed(talker: run.LoadedTalker, requests: list[JobRequested], measured: int) -> dict[str, Any]:
    runner, histories = talker.runner, []
    for number, request in enumerate(requests):
        history = FrameHistory(
            f"step/{number}", request, talker.model.max_frames(request), talker.model.lead,
            forced=np.empty((0, 0), np.int16),
        )  # fmt: skip
        runner.admit(history, talker.model.prompts(request))
        histories.append(history)

    def step() -> int:
        drew = runner.step()
        for history in drew:
            if history.waiting:
                history.take_conditioning(len(history.waiting))
        return len(drew)

    while not all(history.frames for history in histories):
        step()
    for _ in range(_WARM_UP_STEPS):
        step()
    gc.collect()
    times, drawn = [], 0
    for _ in range(measured):
        began = time.perf_counter()
        drawn += step()
        times.append(1000 * (time.perf_counter() - began))
    row = {
        "step_ms": statistics.median(times),
        "p95_ms": statistics.quantiles(times, n=20)[-1],
        "frames_a_step": drawn / measured,
        "still_going": sum(history.reason is None for history in histories),
    }
    card = kernels.parts(step, _PROFILED_STEPS)
    return {**row, **card, "host_ms": row["step_ms"] - card["busy_ms"]} if card else row


def acoustic(settings: Settings, windows: int) -> Iterator[dict[str, Any]]:
    """Milliseconds of a whole window in mid-song and of its parts, and what it sounds like."""
    family = load_family(settings.family)
    torch.set_num_threads(settings.acoustic.threads)
    began = time.perf_counter()
    model = family.acoustic(settings.checkpoint, settings.acoustic.options)
    loaded = time.perf_counter() - began
    plan, random = family.plan(_requests(settings)(Song(0, 1))), np.random.default_rng(0)
    song = (0.2 * random.standard_normal((plan.sent_with(3), model.width))).astype(np.float32)
    times, sounds, state, first = [], [], {}, 0.0
    checks: list[float] = []
    for number in range(windows + 2):  # the first two compile, capture and warm up
        index = min(number, 1)
        start, end = plan.bounds(index, len(song))
        checks.clear()
        began = time.perf_counter()
        sound, after = model.window(
            song[start:end], index=index, last=False, seed=3, state=state if index else {},
            check=lambda: checks.append(time.perf_counter()),
        )  # fmt: skip
        took = time.perf_counter() - began
        if index == 0:
            state, first = after, took
        else:
            times.append(1000 * took)
            sounds.append(sound)
    solver = 1000 * (checks[-1] - checks[0]) / max(1, len(checks) - 1)
    median = statistics.median(times[1:])
    yield {
        "loaded_s": loaded,
        "first_window_s": first,
        "window_ms": median,
        "solver_step_ms": solver,
        "rest_ms": median - solver * len(checks),
        "sound_s": len(sounds[0]) / model.sample_rate,
        "repeats": all(np.array_equal(sound, sounds[0]) for sound in sounds),
        "sound": sounds[0][::16].tolist(),  # enough to tell how far two settings are apart
        **_memory(),
    }


def calls(settings: Settings, measured: int) -> Iterator[dict[str, Any]]:
    """A row for each length of Code2Wav's calls, every one full: milliseconds a call, and sound a second."""
    torch.set_num_threads(settings.acoustic.threads)
    began = time.perf_counter()
    model = load_family(settings.family).acoustic(settings.checkpoint, settings.acoustic.options)
    loaded, random = time.perf_counter() - began, np.random.default_rng(0)
    for frames in (1, 2, 4, 8, 16, 25):
        states: list[dict[str, Any]] = [{}] * model.batch
        times, sound = [], np.empty(0)
        for index in range(measured + 2):
            codes = random.integers(0, 2000, (frames, 16)).astype(np.int16)
            asked = [Window(codes, index, False, 0, state, lambda: None) for state in states]
            began = time.perf_counter()
            decoded = model.windows(asked)
            times.append(1000 * (time.perf_counter() - began))
            states, sound = [own.state for own in decoded], decoded[0].pcm
            assert all(np.array_equal(own.pcm, sound) for own in decoded)
        median = statistics.median(times[2:])
        seconds = model.batch * len(sound) / model.sample_rate
        row = {"frames": frames, "call_ms": median, "sound_s_per_s": 1000 * seconds / median, "loaded_s": loaded}
        yield {**row, "sound": sound[::16, 0].tolist(), **_memory()}


WORKS: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
    "play": play,
    "steps": steps,
    "acoustic": acoustic,
    "calls": calls,
}


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    settings = load(
        task["config"], Path(task["checkpoint"]), overrides=task["overrides"], platform=task["platform"]
    )  # fmt: skip
    with Path(sys.argv[2]).open("w") as rows:
        for row in WORKS[task["work"]](settings, **task["arguments"]):
            rows.write(json.dumps(row) + "\n")
            rows.flush()


if __name__ == "__main__":
    main()
