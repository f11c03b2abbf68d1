"""The commands that speak to a running api of its jobs: submit, follow, cancel, jobs. Results go to standard output,
progress to standard error."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from compose.connecting import connected
from compose.hearing import hear, report, send_and_hear
from compose.outlets import check
from compose.trouble import USAGE, Trouble
from producer import Job
from producer.columns import columns
from producer.orders import song

_HEADINGS = ("job", "status", "model", "requested", "sound", "first", "took")


def submit(args: argparse.Namespace) -> int | None:
    body = song_body(args)
    if not args.detach:
        return send_and_hear(args, body, aloud=False)
    with connected(args) as songline:
        job = songline.submit(body)
    print(json.dumps(job.state, indent=2, ensure_ascii=False) if args.as_json else job.id)
    return None


def follow(args: argparse.Namespace) -> int:
    check(args.out, args.format, play=args.play)
    with connected(args) as songline:
        began = time.perf_counter()
        heard = hear(songline.job(args.job), began, out=args.out, format_=args.format, play=args.play)
    return report(heard, args.out, as_json=args.as_json)


def cancel(args: argparse.Namespace) -> None:
    with connected(args) as songline:
        job = songline.cancel(args.job)
    print(json.dumps(job.state, indent=2, ensure_ascii=False) if args.as_json else f"{job.id}  {job.status}")


def jobs(args: argparse.Namespace) -> None:
    with connected(args) as songline:
        found = songline.jobs(status=args.status, limit=args.limit)
    if args.as_json:
        print(json.dumps([job.state for job in found], indent=2, ensure_ascii=False))
    elif found:
        print(columns([_HEADINGS, *(_row(job) for job in found)]))
    else:
        print("no jobs", file=sys.stderr)


def _row(job: Job) -> Sequence[str]:
    timings = job.state["timings"]
    requested = datetime.fromtimestamp(timings["requested_at"]).strftime("%m-%d %H:%M:%S")
    first, took = (_seconds(timings.get(name)) for name in ("first_audio_s", "total_s"))
    return job.id, job.status or "unreadable", job.model or "", requested, _seconds(job.audio_seconds), first, took


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def song_body(args: argparse.Namespace) -> dict[str, Any]:
    """The request that the flags describe. Raises Trouble."""
    if args.lyrics is None:
        raise Trouble("say what to sing: --lyrics FILE, or --lyrics - to type it in", USAGE)
    return song(
        read_text(args.lyrics, "the lyrics"),
        caption=args.caption,
        model=args.model,
        seed=args.seed,
        max_new_tokens=args.frames,
    )


def read_text(named: str, what: str) -> str:
    """A file's text; that of standard input where it is named "-". Raises Trouble."""
    try:
        return sys.stdin.read() if named == "-" else Path(named).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        where = "standard input" if named == "-" else named
        raise Trouble(f"cannot read {what} from {where}: {error}", USAGE) from error
