"""A bench report for people: its levels as a table, and beside another report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from producer.columns import columns

_HEADINGS = (
    "load", "ok", "failed", "audio s/s", "first p50", "p95", "p99", "end p50", "p95", "p99", "gap", "underrun", "p95",
    "streams",
)  # fmt: skip
_COMPARED: tuple[tuple[str, Callable[[dict[str, Any]], float]], ...] = (
    ("audio s/s", lambda level: level["audio_s_per_s"]),
    ("first p50", lambda level: level["first_audio_s"]["p50"]),
    ("first p95", lambda level: level["first_audio_s"]["p95"]),
    ("end p50", lambda level: level["end_to_end_s"]["p50"]),
    ("end p95", lambda level: level["end_to_end_s"]["p95"]),
    ("underrun", lambda level: level["underrun"]["total_s"]),
)


def level_name(level: dict[str, Any]) -> str:
    return f"{level['concurrency']} at a time" if level["load"] == "closed" else f"{level['rate']:g} a second"


def table(levels: Sequence[dict[str, Any]]) -> str:
    """One line a level; times in seconds."""
    return columns([_HEADINGS, *(_row(level) for level in levels)], numbers=True)


def errors(levels: Sequence[dict[str, Any]]) -> str:
    """What failed and how often, a line each; empty where nothing did."""
    counted = [(level_name(level), *error) for level in levels for error in level["errors"].items()]
    return "\n".join(f"{name}: {count} times {message}" for name, message, count in counted)


def same_bytes(levels: Sequence[dict[str, Any]]) -> str:
    """Whether the songs of one seed were the same at every level."""
    return _verdict([(result["seed"], result["sha256"]) for level in levels for result in level["results"]])


def comparison(now: dict[str, Any], before: dict[str, Any]) -> str:
    """This report beside an earlier one: the levels that both have, then whether the bytes are the same."""
    earlier = {level_name(level): level for level in before["levels"]}
    rows: list[Sequence[str]] = [("load", *(name for name, _ in _COMPARED))]
    for level in now["levels"]:
        if old := earlier.get(level_name(level)):
            rows.append((level_name(level), *(_change(value(old), value(level)) for _, value in _COMPARED)))
    if len(rows) == 1:
        return "no level is in both reports: give the same --concurrency or --rate as before"
    songs = [
        (result["seed"], result["sha256"])
        for report in (before, now)
        for level in report["levels"]
        for result in level["results"]
    ]
    same_request = now["body"] == before["body"]
    verdict = _verdict(songs) if same_request else "the two reports asked for different songs: bytes are not compared"
    return f"{columns(rows, numbers=True)}\n{verdict}"


def _verdict(songs: Sequence[tuple[int, str | None]]) -> str:
    digests: dict[int, set[str]] = {}
    for seed, sha256 in songs:
        if sha256:
            digests.setdefault(seed, set()).add(sha256)
    differing = sorted(seed for seed, seen in digests.items() if len(seen) > 1)
    if differing:
        return f"bytes DIFFER for {len(differing)} of {len(digests)} seeds: {', '.join(map(str, differing[:10]))}"
    return f"bytes: one sha256 for each of {len(digests)} seeds"


def _row(level: dict[str, Any]) -> Sequence[str]:
    first, end, under = level["first_audio_s"], level["end_to_end_s"], level["underrun"]
    times = (*first.values(), *end.values(), level["longest_gap_s"], under["total_s"], under["p95_s"])
    return (
        level_name(level), str(level["ok"]), str(level["failed"]), f"{level['audio_s_per_s']:.2f}",
        *(_seconds(time) for time in times), f"{under['share']:.0%}",
    )  # fmt: skip


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _change(before: float | None, now: float | None) -> str:
    if not before or now is None:
        return f"{_seconds(before)} → {_seconds(now)}"
    return f"{_seconds(before)} → {_seconds(now)} ({now / before - 1:+.0%})"
