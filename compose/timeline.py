"""`songline show`: a job's log as a line for each event, with what happened when, and who did it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from compose.connecting import connected
from producer import Job
from producer.columns import columns

_DIGITS = 12  # shown of a digest


def show(args: argparse.Namespace) -> None:
    with connected(args) as songline:
        job = songline.job(args.job)
        if args.as_json:
            print(json.dumps(job.state, indent=2, ensure_ascii=False))
            return
        events = job.events()
    print(heading(job))
    print(columns(timeline(events, rate=job.sample_rate)))


def heading(job: Job) -> str:
    state = job.state
    timings = state["timings"]
    requested = datetime.fromtimestamp(timings["requested_at"]).strftime("%Y-%m-%d %H:%M:%S")
    what = f"{job.id}  {job.status}  {job.model}  seed {job.seed}  {job.audio_seconds:.2f} s of sound"
    when = [f"requested {requested}"]
    if timings["first_audio_s"] is not None:
        when.append(f"first sound after {timings['first_audio_s']:.3f} s")
    if timings["total_s"] is not None:
        when.append(f"over after {timings['total_s']:.3f} s")
    return f"{what}\n{', '.join(when)}\n"


def timeline(events: Iterable[Mapping[str, Any]], *, rate: int | None) -> list[Sequence[str]]:
    """(time since the request, what, who, detail) of each event. `rate`: samples a second, where it is known."""
    rows: list[Sequence[str]] = []
    began: float | None = None
    owners: dict[str, str] = {}  # who has the job, by role
    for event in events:
        began = event["at"] if began is None else began
        what, detail = _told(event, rate, owners)
        rows.append((f"{event['at'] - began:+9.3f} s", what, event["by"], detail))
    return rows


def _told(event: Mapping[str, Any], rate: int | None, owners: dict[str, str]) -> tuple[str, str]:
    """What an event says, in two parts. Keeps `owners`."""
    data = event["data"]
    match event["type"]:
        case "job.requested":
            return "requested", f"{len(data['input'])} characters for {data['model']}, by {data['owner']}"
        case "job.admitted":
            owners[data["role"]] = data["worker"]
            rows = f"{data['rows']} row{'' if data['rows'] == 1 else 's'}"
            return "admitted", f"as {data['role']}, {rows}, profile {data['profile'][:_DIGITS]}{_retry(data)}"
        case "job.resumed":
            before = owners.get(data["role"])
            owners[data["role"]] = data["worker"]
            return "taken over", f"as {data['role']}{_place(data)}{f', from {before}' if before else ''}{_retry(data)}"
        case "reference.encoded":
            return "voice encoded", f"recording {data['recording'][:_DIGITS]}"
        case "codes.logged":
            start, draws = data["start_draw"], data["codes"]["shape"][0]
            return "codes", f"draws {start} to {start + draws - 1}"
        case "span.window" | "span.terminal":
            return f"span {data['index']}", _span(data)
        case "audio.chunk":
            seconds = f"{data['samples'] / rate:.2f} s of sound" if rate else f"{data['samples']} samples"
            return f"chunk {data['index']}", f"{seconds}, sha256 {data['sha256'][:_DIGITS]}"
        case "rows.freed":
            return "rows freed", f"{data['rows']} at step {data['step']}: {data['why']}"
        case "job.completed":
            return "completed", f"{data['frames']} frames, {data['samples']} samples: {data['reason']}"
        case "job.cancelled":
            return "cancelled", f"by {data['by_whom']}"
        case "job.failed":
            again = "may be sent again" if data["retryable"] else "would fail again"
            return "failed", f"{data['code']}: {data['message']} ({again})"
    return event["type"], "not known to this version"


def _retry(data: Mapping[str, Any]) -> str:
    return f", attempt {data['attempt']}" if data["attempt"] > 1 else ""


def _place(data: Mapping[str, Any]) -> str:
    for name in ("frame", "window"):
        if data.get(f"from_{name}") is not None:
            return f" at {name} {data[f'from_{name}']}"
    return ""


def _span(data: Mapping[str, Any]) -> str:
    frames = f"frames {data['start_frame']} to {data['start_frame'] + data['frames'] - 1}"
    if data["frames"] == 0:
        frames = "no frames"
    if "reason" not in data:
        return frames
    return f"{frames}, the last: {'it went in circles' if data.get('looped') else data['reason']}"
