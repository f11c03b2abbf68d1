"""The sections: what each asks of its children, and what its table says."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from tests.bench.gpu.bench import Bench
from tests.bench.gpu.pipeline import pipeline
from tests.bench.gpu.songs import Scenario, Song, Visit, pool

_PRESSED_SONGS = 8
_PRESSURE = (0.75, 0.5, 0.3)  # of the blocks that all of them need


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Where two outcomes of a song part: '' if nowhere. Draws count from 0, and draw 0 is no frame."""
    for what, one in (("codes", "draw"), ("rows", "conditioning of frame")):
        for number, (left, right) in enumerate(zip(ours[what], theirs[what], strict=False)):
            if left != right:
                return f"{one} {number}"
    if (ours["frames"], ours["reason"]) != (theirs["frames"], theirs["reason"]):
        return f"{ours['frames']} frames, {ours['reason']}"
    lengths = [(len(outcome["codes"]), len(outcome["rows"])) for outcome in (ours, theirs)]
    return "" if lengths[0] == lengths[1] else "{} draws with {} rows of conditioning".format(*lengths[0])


def differences(played: dict[str, Any], reference: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The columns that say whether a scenario's songs are those of the reference, by name."""
    found = [(song["song"], difference(song, reference[song["song"]])) for song in played["songs"]]
    differing = [f"{name}: {where}" for name, where in found if where]
    return {
        "same": f"{len(found) - len(differing)} of {len(found)}",
        "first difference": differing[0] if differing else "",
        "preemptions": played["preemptions"],
        "steps": played["steps"],
        "s": played["wall_s"],
    }


def _played(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "scenario" in row]


def _songs(played: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The outcomes of songs that were alone, by name."""
    return {song["song"]: song for row in played if row["scenario"].startswith("alone ") for song in row["songs"]}


def _as_arguments(scenarios: list[Scenario]) -> list[dict[str, Any]]:
    return [asdict(scenario) for scenario in scenarios]


def alone(bench: Bench) -> None:
    """Point 1: one sha256 for each song, whatever the runner and however its prompt is cut."""
    asked = _as_arguments(_alone(bench))
    rows, notes, references = [], [], defaultdict(dict)
    for runner in bench.runners:
        for name, extra in _prefills(runner).items():
            played = bench.kept(
                "alone", f"{runner}, {name}", notes, "play", bench.tree(runner, extra), scenarios=asked
            )  # fmt: skip
            rows += _alone_rows(runner, name, _played(played), references[name])
            bench.put("alone", rows, notes)


def _alone(bench: Bench) -> list[Scenario]:
    songs = [Song(number, frames, verses=1 + 3 * (number % 3)) for number, frames in enumerate(bench.plan.lengths)]
    return [Scenario.alone(song) for song in songs]


def _alone_rows(
    runner: str, prefill: str, played: list[dict[str, Any]], reference: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Adds the songs that are not in it yet to the reference."""
    return [
        {
            "runner": runner, "prefill": prefill, "song": song["song"], "frames": song["frames"],
            "ended by": song["reason"], "codes": song["codes_sha256"][:12],
            "conditioning": song["conditioning_sha256"][:12],
            "differs from the first runner": difference(song, reference.setdefault(song["song"], song)) or "no",
        }
        for song in (song for row in played for song in row["songs"])
    ]  # fmt: skip


def _prefills(runner: str) -> dict[str, dict[str, Any]]:
    if runner == "torch":
        return {"default": {}}
    return {"default": {}, "64 tokens a step": {"talker": {"max_num_batched_tokens": 64, "prefill_chunk": 32}}}


def concurrent(bench: Bench) -> None:
    """Point 2: the same sha256 as alone, whoever else is there."""
    asked = _as_arguments(_concurrent(bench))
    rows, notes = [], []
    for runner in bench.runners:
        played = bench.kept("concurrent", runner, notes, "play", bench.tree(runner), scenarios=asked)
        rows += _concurrent_rows(runner, _played(played))
        bench.put("concurrent", rows, notes)


def _concurrent(bench: Bench) -> list[Scenario]:
    plan = bench.plan
    songs = pool(plan.songs, plan.shortest, plan.longest)
    half, few = plan.longest // 2, songs[: max(plan.levels)]
    left = {1: 5, 3: half // 2, 4: half}
    return [
        *(Scenario.alone(song) for song in songs),
        *(Scenario.together(f"{level} at once", songs[:level]) for level in plan.levels),
        Scenario.together("staggered, every 7 steps", few[:8], every=7),
        Scenario.together("four identical", [songs[-1]] * 4),
        Scenario("aborts in between", tuple(
            Visit(song, arrives=3 * number, leaves=left.get(number)) for number, song in enumerate(few[:12])
        )),
        Scenario.together(f"soak of {len(songs)}", songs, every=2),
    ]  # fmt: skip


def _concurrent_rows(runner: str, played: list[dict[str, Any]]) -> list[dict[str, Any]]:
    reference = _songs(played)
    return [
        {"runner": runner, "songs": row["scenario"], **differences(row, reference)}
        for row in played
        if not row["scenario"].startswith("alone ")
    ]


def pressure(bench: Bench) -> None:
    """Point 3: songs lose their memory to one another, and none of it is heard."""
    asked = _as_arguments(_pressure(bench))
    rows, notes = [], []
    for runner in bench.runners:
        if runner == "torch":
            notes.append("torch has no pages: each of its slots holds a whole song")
        else:
            played = bench.kept("pressure", runner, notes, "play", bench.tree(runner), scenarios=asked)
            rows += _pressure_rows(runner, _played(played))
        bench.put("pressure", rows, notes)


def _pressure(bench: Bench) -> list[Scenario]:
    songs = [Song(number, bench.plan.pressed, verses=1 + number % 3) for number in range(_PRESSED_SONGS)]
    together = [Scenario.together("with all there is", songs, every=3)]
    together += [replace(together[0], name=f"with {share:.0%}", memory=share) for share in _PRESSURE]
    return [*(Scenario.alone(song) for song in songs), *together]


def _pressure_rows(runner: str, played: list[dict[str, Any]]) -> list[dict[str, Any]]:
    reference = _songs(played)
    return [
        {
            "runner": runner, "memory": row["scenario"], "blocks": row.get("blocks"),
            **differences(row, reference),
        }
        for row in played
        if not row["scenario"].startswith("alone ")
    ]  # fmt: skip


def takeover(bench: Bench) -> None:
    """A song whose first draws are given back to a runner goes on as if nothing had been."""
    asked = _takeover(bench)
    rows, notes = [], []
    for runner in bench.runners:
        tree = bench.tree(runner)
        played = bench.kept("takeover", runner, notes, "play", tree, scenarios=_as_arguments(asked))
        rows += _takeover_rows(runner, asked, _played(played))
        bench.put("takeover", rows, notes)


def _takeover(bench: Bench) -> list[Scenario]:
    frames = bench.plan.taken_over
    song, others = Song(0, frames, verses=2), pool(3, max(2, frames // 2), frames)
    scenarios = [Scenario.alone(song)]
    for draws in sorted({1, 2, frames // 3, frames // 2, frames - 1}):
        again = Visit(song, arrives=4, resumed_at=draws, sent=max(0, draws - 1) // 2)
        scenarios.append(Scenario(f"after {draws} draws", (again,)))
        crowd = tuple(Visit(other) for other in others)
        scenarios.append(Scenario(f"after {draws} draws, among others", (*crowd, again)))
    return scenarios


def _takeover_rows(runner: str, asked: list[Scenario], played: list[dict[str, Any]]) -> list[dict[str, Any]]:
    name = asked[0].visits[0].song.name
    reference, rows = _songs(played).get(name), []
    for row in played if reference else []:
        if row["scenario"] == asked[0].name:
            continue
        sent = next(scenario for scenario in asked if scenario.name == row["scenario"]).visits[-1].sent
        outcome = next(one for one in row["songs"] if one["song"] == name)
        expected = {**reference, "rows": reference["rows"][sent:]}
        rows.append(
            {
                "runner": runner, "taken over": row["scenario"], "conditioning sent": sent,
                "differs": difference(outcome, expected) or "no", "steps": outcome["steps"],
            }
        )  # fmt: skip
    return rows


def exact(bench: Bench) -> None:
    """Points 1 to 3, and takeovers, on one engine a runner: for where time is short. Makes the four tables.

    Prompts in small chunks need an engine of their own, which is given the shorter songs only.
    """
    parts = {
        "alone": _alone(bench), "concurrent": _concurrent(bench), "takeover": _takeover(bench),
        "pressure": _pressure(bench),
    }  # fmt: skip
    shorter = _as_arguments([one for one in parts["alone"] if one.visits[0].song.frames <= bench.plan.longest])
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in parts}
    notes, references = [], defaultdict(dict)
    for runner in bench.runners:
        for prefill, extra in _prefills(runner).items():
            paged = [] if runner == "torch" else parts["pressure"]
            asked = [scenario for name in ("alone", "concurrent", "takeover") for scenario in parts[name]] + paged
            found = bench.kept(
                "exact", f"{runner}, {prefill}", notes, "play", bench.tree(runner, extra),
                scenarios=shorter if extra else _as_arguments(asked),
            )  # fmt: skip
            played = iter(_played(found))
            mine = {name: list(itertools.islice(played, len(scenarios))) for name, scenarios in parts.items()}
            rows["alone"] += _alone_rows(runner, prefill, mine["alone"], references[prefill])
            rows["concurrent"] += _concurrent_rows(runner, mine["concurrent"])
            rows["pressure"] += _pressure_rows(runner, mine["pressure"])
            rows["takeover"] += _takeover_rows(runner, parts["takeover"], mine["takeover"])
            for name in parts:
                bench.put(name, rows[name], notes)


_CODE2WAV_DTYPES = ("float32", "tf32", "bfloat16")
_CODE2WAV_BATCHES = (1, 8, 16, 32)


def steps(bench: Bench) -> None:
    """Point 4: milliseconds a step, and what they go to."""
    rows, notes = [], []
    several = (1, 16, 64) if bench.family == "qwen3_tts" and bench.on_cuda else (1, 4, 8, 16)
    at_once = [songs for songs in several if songs <= bench.plan.stepped]
    for runner in bench.runners:
        for name, extra in _modes(bench, runner).items():
            wanted = {"at_once": at_once, "measured": bench.plan.measured}
            timed = bench.kept("steps", f"{runner}, {name}", notes, "steps", bench.tree(runner, extra), **wanted)
            rows += [{"runner": runner, "mode": name, **row} for row in timed]
            bench.put("steps", rows, notes)


def _modes(bench: Bench, runner: str) -> dict[str, dict[str, Any]]:
    """How a song's bits are kept its own, by shapes or by batch-invariant kernels; and the draw, fused or not."""
    if runner == "torch" or not bench.on_cuda:
        return {"as the runner is": {}}
    return {
        "fixed shapes, draw compiled": {"talker": {"compile_draw": True}},
        "fixed shapes": {"talker": {"compile_draw": False}},
        "batch-invariant kernels": {
            "talker": {"compile_draw": False, "batch_invariant": True, "exclusive_prefill": False}
        },
    }


def acoustic(bench: Bench) -> None:
    """A window's time by the acoustic stage's options, and how far its sound is from float32's."""
    if bench.family == "qwen3_tts":
        _calls_of_code2wav(bench)
        return
    rows, notes, exact = [], [], None
    for name, options in _acoustic_options(bench).items():
        tree = bench.tree("torch", {"acoustic": {"options": options}})
        timed = bench.kept("acoustic", name, notes, "acoustic", tree, windows=bench.plan.windows)
        for row in timed:
            sound = np.array(row.pop("sound"), np.float64)
            exact = sound if exact is None else exact
            rows.append({"options": name, **row, "dB over the error": _over_the_error(exact, sound)})
        bench.put("acoustic", rows, notes)


def _over_the_error(exact: np.ndarray, sound: np.ndarray) -> str:
    """How far the sound is above its difference from the exact one, in dB."""
    error = float(np.mean((sound - exact) ** 2))
    return f"{10 * math.log10(float(np.mean(exact**2)) / error):.1f}" if error else "exact"


def _calls_of_code2wav(bench: Bench) -> None:
    """Each length's call by dtype and batch; how far the sound is from float32's."""
    rows, notes, exact = [], [], {}
    cuda = bench.on_cuda
    for dtype, batch in itertools.product(_CODE2WAV_DTYPES if cuda else ("float32",), _CODE2WAV_BATCHES):
        tree = bench.tree("torch", {"acoustic": {"options": {"dtype": dtype, "batch": batch}}})
        for row in bench.kept("acoustic", f"{dtype}, {batch}", notes, "calls", tree, measured=bench.plan.windows * 4):
            sound = np.array(row.pop("sound"), np.float64)
            error = _over_the_error(exact.setdefault(row["frames"], sound), sound)
            rows.append({"dtype": dtype, "batch": batch, **row, "dB over the error": error})
        bench.put("acoustic", rows, notes)


def _acoustic_options(bench: Bench) -> dict[str, dict[str, Any]]:
    if not bench.on_cuda:
        return {"float32": {"dtype": "float32"}, "bfloat16": {"dtype": "bfloat16"}}
    rough = {"dtype": "bfloat16"}
    return {
        "float32": {"dtype": "float32", "cuda_graph": True, "compile": False},
        "bfloat16, no graph": {**rough, "cuda_graph": False, "compile": False},
        "bfloat16": {**rough, "cuda_graph": True, "compile": False},
        "bfloat16, compiled": {**rough, "cuda_graph": True, "compile": True},
        "bfloat16, compiled, tf32 vocoder": {
            **rough, "cuda_graph": True, "compile": True, "vocoder_dtype": "tf32",
        },
        "bfloat16, compiled, bfloat16 vocoder": {
            **rough, "cuda_graph": True, "compile": True, "vocoder_dtype": "bfloat16",
        },
    }  # fmt: skip


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "alone": alone,
    "concurrent": concurrent,
    "pressure": pressure,
    "takeover": takeover,
    "exact": exact,
    "steps": steps,
    "acoustic": acoustic,
    "pipeline": pipeline,
}
