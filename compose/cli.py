"""The command `songline`. Each command imports what it needs when it runs, so that clients start at once."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import warnings
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from compose.settings import BadSetting, add_flags, resolve
from compose.trouble import FAILED, INTERRUPTED, USAGE, Trouble


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand; `run` is "module:function", called with its settings. It may return an exit code."""

    name: str
    help: str
    run: str
    arguments: tuple[tuple[str, str], ...] = ()
    role: bool = False


COMMANDS = (
    Command("up", "everything in one process: api, talker, acoustic worker, broker", "compose.serve:up", role=True),
    Command("api", "the HTTP api", "compose.serve:api", role=True),
    Command("talker", "a talker worker; start as many as you like", "compose.serve:talker", role=True),
    Command("acoustic", "an acoustic worker; start as many as you like", "compose.serve:acoustic", role=True),
    Command("submit", "send a song, and hear it to its end; Ctrl-C cancels it", "compose.client:submit"),
    Command("follow", "hear a job that was sent before", "compose.client:follow", (("job", "the job's id"),)),
    Command("cancel", "cancel a job", "compose.client:cancel", (("job", "the job's id"),)),
    Command("show", "a job's state, as JSON", "compose.client:show", (("job", "the job's id"),)),
    Command("jobs", "your jobs, newest first", "compose.client:jobs"),
    Command("bench", "put load on an api, and measure what its listeners hear", "compose.benching:bench"),
    Command(
        "make-checkpoint", "write a random checkpoint in a family's published format", "compose.checkpoint:command",
        (("family", "the model family; `songline models` lists them"), ("folder", "the folder to make")),
    ),
    Command("models", "the model families that can be served", "compose.checkpoint:list_families"),
    Command("demo", "serve, sing one song, save it, stop", "compose.demonstration:demo"),
    Command("workers", "the workers that are alive, and what they do", "compose.workers:workers"),
    Command(
        "drain", "have a worker take no more jobs, so that it can be stopped with none", "compose.workers:drain",
        (("worker", "its name; `songline workers` lists them"),),
    ),
    Command("undrain", "have a drained worker take jobs again", "compose.workers:undrain", (("worker", "its name"),)),
    Command("health", "whether a role of this host does its work; exits 1 where not", "compose.health:health"),
)  # fmt: skip

_EPILOG = (
    "Every flag may also be given by its environment variable, in brackets. Exit codes: 1 failed, 2 wrong usage, 3 the "
    "server or Redis does not answer, 4 no checkpoint, 5 the port is in use, 130 interrupted."
)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="songline", description="Event-sourced serving of two-stage speech and music models over Redis Streams.",
        epilog=_EPILOG,
    )  # fmt: skip
    top.add_argument("--version", action="version", version=f"songline {own_version()}")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = subparsers.add_parser(command.name, help=command.help, description=command.help, epilog=_EPILOG)
        for name, meaning in command.arguments:
            sub.add_argument(name, help=meaning)
        add_flags(sub, command.name)
    return top


def own_version() -> str:
    try:
        return version("songline")
    except PackageNotFoundError:
        return "(not installed)"


def _start_logging(level: str) -> None:
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # The vocoder's authors still use torch's old weight_norm; nobody who serves it can change that.
    warnings.filterwarnings("ignore", message=".*weight_norm.* is deprecated", category=FutureWarning)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def main(argv: list[str] | None = None) -> int:
    given = parser().parse_args(argv)
    command = next(command for command in COMMANDS if command.name == given.command)
    try:
        args = resolve(command.name, given)
        if command.role:
            _start_logging(args.log_level)
        module, function = command.run.split(":")
        return getattr(importlib.import_module(module), function)(args) or 0
    except BadSetting as error:
        print(f"songline: {error}", file=sys.stderr)
        return USAGE
    except Trouble as error:
        print(f"songline: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
