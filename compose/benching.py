"""`songline bench`: the loads that the flags describe, a table for people, JSON for machines."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import producer.bench
from compose.demonstration import demo_body, serving
from compose.outlets import check_writable
from compose.trouble import FAILED, UNREACHABLE, USAGE, Trouble
from producer.bench import VIA, BadServer, Load, Target
from producer.bench_table import comparison, errors, level_name, same_bytes, table


def bench(args: argparse.Namespace) -> int:
    if args.via not in VIA:
        raise Trouble(f"--via {args.via} is not known: it may be {' or '.join(VIA)}", USAGE)
    earlier = _read(args.compare) if args.compare else None
    check_writable(args.json)
    body = demo_body(args)
    first_seed = body.pop("seed")
    with serving(args) if args.serve else nullcontext(args.url) as url:
        target = Target(url, body, first_seed, args.via, args.api_key, args.timeout)
        try:
            report = asyncio.run(producer.bench.bench(target, _loads(args), warm_up=args.warm_up, done=_tell))
        except BadServer as error:
            raise Trouble(str(error), UNREACHABLE) from error
    print(table(report["levels"]))
    print(same_bytes(report["levels"]))
    if failures := errors(report["levels"]):
        print(failures)
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    if earlier:
        print(f"\nbefore → now ({args.compare})\n{_compared(report, earlier, args.compare)}")
    return FAILED if any(level["failed"] for level in report["levels"]) else 0


def _loads(args: argparse.Namespace) -> list[Load]:
    if args.rate:
        return [Load(args.requests, rate=rate) for rate in args.rate]
    return [Load(args.requests, concurrency=concurrency) for concurrency in args.concurrency]


def _read(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Trouble(f"cannot read the report {path}: {error}", USAGE) from error
    if not isinstance(report, dict) or report.get("format") != producer.bench.FORMAT or "levels" not in report:
        raise _no_report(path)
    return report


def _compared(report: dict[str, Any], earlier: dict[str, Any], path: Path) -> str:
    try:
        return comparison(report, earlier)
    except (KeyError, TypeError) as error:
        raise _no_report(path) from error


def _no_report(path: Path) -> Trouble:
    return Trouble(f"{path} is no report that this version can compare with", USAGE)


def _tell(level: dict[str, Any]) -> None:
    print(f"{level_name(level)}: {level['ok']} ok, {level['failed']} failed", file=sys.stderr, flush=True)
