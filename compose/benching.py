"""`songline bench`: the loads that the flags describe, a table for people, JSON for machines."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path
from typing import Any

import producer.bench
from compose.client import song_body
from compose.demonstration import serving
from compose.trouble import FAILED, UNREACHABLE, USAGE, Trouble
from producer.bench import VIA, BadServer, Load, Target
from producer.bench_table import comparison, errors, level_name, same_bytes, table


def bench(args: argparse.Namespace) -> int:
    if args.via not in VIA:
        raise Trouble(f"--via {args.via} is not known: it may be {' or '.join(VIA)}", USAGE)
    earlier = _read(args.compare) if args.compare else None
    with serving(args) if args.serve else nullcontext(args.url) as url:
        target = Target(url, _body(args), args.seed or 0, args.via, args.api_key, args.timeout)
        try:
            report = asyncio.run(producer.bench.bench(target, _loads(args), warm_up=args.warm_up, done=_tell))
        except BadServer as error:
            raise Trouble(str(error), UNREACHABLE) from error
    print(table(report["levels"]))
    print(same_bytes(report["levels"]))
    if failures := errors(report["levels"]):
        print(failures)
    if earlier:
        print(f"\nbefore → now ({args.compare})\n{comparison(report, earlier)}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return FAILED if any(level["failed"] for level in report["levels"]) else 0


def _loads(args: argparse.Namespace) -> list[Load]:
    if args.rate:
        return [Load(args.requests, rate=rate) for rate in args.rate]
    return [Load(args.requests, concurrency=concurrency) for concurrency in args.concurrency]


def _body(args: argparse.Namespace) -> dict[str, Any]:
    """The flags' song, else the demo's."""
    demo = files("compose") / "demo"
    args.lyrics = args.lyrics or str(demo / "lyrics.txt")
    args.caption = args.caption or (demo / "caption.txt").read_text(encoding="utf-8")
    args.seed, seed = None, args.seed
    body = song_body(args)
    args.seed = seed
    return body


def _read(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Trouble(f"cannot read the report {path}: {error}", USAGE) from error
    if not isinstance(report, dict) or report.get("format") != producer.bench.FORMAT:
        raise Trouble(f"{path} is no report that this version can compare with", USAGE)
    return report


def _tell(level: dict[str, Any]) -> None:
    print(f"{level_name(level)}: {level['ok']} ok, {level['failed']} failed", file=sys.stderr, flush=True)
