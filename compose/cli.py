"""The command `songline`. Each command imports what it needs when it runs, so that clients start at once."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from compose.settings import BadSetting, add_flags, resolve
from compose.trouble import FAILED, INTERRUPTED, USAGE, Trouble


@dataclass(frozen=True, slots=True)
class Argument:
    """What is given without a flag. An optional one is None where it is left out."""

    name: str
    help: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand; `run` is "module:function", called with its settings. It may return an exit code."""

    name: str
    help: str
    run: str
    arguments: tuple[Argument, ...] = ()
    role: bool = False
    examples: tuple[str, ...] = ()


_JOB = (Argument("job", "the job's id"),)
_REDIS = "redis://127.0.0.1:6379/0"

COMMANDS = (
    Command(
        "up", "everything in one process: api, talker, acoustic worker, broker", "compose.serve:up", role=True,
        examples=(
            "songline up",
            "songline up --model minimax_music3",
            f"songline up --broker {_REDIS} --checkpoint DIR",
        ),
    ),
    Command(
        "api", "the HTTP api", "compose.serve:api", role=True,
        examples=(f"songline api --broker {_REDIS} --checkpoint DIR --host 0.0.0.0",),
    ),
    Command(
        "talker", "a talker worker; start as many as you like", "compose.serve:talker", role=True,
        examples=(f"songline talker --broker {_REDIS} --checkpoint DIR",),
    ),
    Command(
        "acoustic", "an acoustic worker; start as many as you like", "compose.serve:acoustic", role=True,
        examples=(f"songline acoustic --broker {_REDIS} --checkpoint DIR",),
    ),
    Command(
        "archive", "keep finished jobs' sound and facts in a folder or an object store", "compose.archiving:archive",
        role=True,
        examples=(
            f"songline archive --archive /var/songline --broker {_REDIS}",
            f"songline archive --archive s3://bucket/songs --archive-format flac --once --broker {_REDIS}",
        ),
    ),
    Command(
        "say", "have a text spoken, and hear it as it is made; Ctrl-C cancels it", "compose.speaking:say",
        (Argument("text", "what to say; - or nothing for standard input", optional=True),),
        examples=(
            'songline say "The river knows the way." --seed 7',
            "songline say -o page.wav < page.txt",
            'songline say "Good evening." -o - | ffmpeg -i - evening.mp3',
        ),
    ),
    Command(
        "sing", "have lyrics sung, and hear the song as it is made; Ctrl-C cancels it", "compose.speaking:sing",
        (Argument("text", "the lyrics; - or nothing for standard input", optional=True),),
        examples=(
            'songline sing --lyrics song.txt --caption "a slow folk ballad" -o song.wav',
            "songline sing $'[verse]\\nThe river wrote a letter to the sea' --caption 'a waltz' --frames 250",
        ),
    ),
    Command(
        "submit", "send a song, and hear it to its end; Ctrl-C cancels it", "compose.client:submit",
        examples=('songline submit --lyrics song.txt --caption "a slow folk ballad" --detach',),
    ),
    Command(
        "follow", "hear a job that was sent before", "compose.client:follow", _JOB,
        examples=("songline follow JOB --play", "songline follow JOB -o song.wav"),
    ),
    Command("cancel", "cancel a job", "compose.client:cancel", _JOB, examples=("songline cancel JOB",)),
    Command(
        "show", "what happened to a job, and when: its log as a time line", "compose.timeline:show", _JOB,
        examples=("songline show JOB", "songline show JOB --json | jq .timings"),
    ),
    Command(
        "jobs", "your jobs, newest first", "compose.client:jobs",
        examples=("songline jobs --status failed", "songline jobs --json --limit 100 | jq -r .[].id"),
    ),
    Command(
        "verify", "compute a job again, and compare the bytes; exits 1 where they differ, 6 where nothing can be said",
        "compose.verification:verify", _JOB, examples=("songline verify JOB",),
    ),
    Command(
        "bench", "put load on an api, and measure what its listeners hear", "compose.benching:bench",
        examples=(
            "songline bench --concurrency 1,4,16 --requests 32 --json before.json",
            "songline bench --concurrency 1,4,16 --requests 32 --compare before.json",
        ),
    ),
    Command(
        "make-checkpoint", "write a random checkpoint in a family's published format", "compose.checkpoint:command",
        (
            Argument("family", "the model family; `songline models` lists them"),
            Argument("folder", "the folder to make"),
        ),
        examples=("songline make-checkpoint qwen3_tts ./tiny",),
    ),
    Command(
        "models", "the model families that can be served", "compose.checkpoint:list_families",
        examples=("songline models",),
    ),
    Command(
        "demo", "serve, say one text or sing one song, save it, stop", "compose.demonstration:demo",
        examples=("songline demo -o speech.wav", "songline demo --model minimax_music3"),
    ),
    Command(
        "health", "whether a role of this host does its work; exits 1 where not", "compose.health:health",
        examples=("songline health --role api --port 8000", f"songline health --role talker --broker {_REDIS}"),
    ),
    Command(
        "doctor", "what serving needs, what of it is amiss here, and what to do; exits 1 where something is",
        "compose.doctor:doctor",
        examples=(
            "songline doctor",
            f"songline doctor --checkpoint DIR --broker {_REDIS} --json",
        ),
    ),
    Command(
        "workers", "the workers and archivers that are alive, and what they do", "compose.workers:workers",
        examples=(f"songline workers --broker {_REDIS}",),
    ),
    Command(
        "drain", "have a worker take no more jobs, so that it can be stopped with none", "compose.workers:drain",
        (Argument("worker", "its name; `songline workers` lists them"),),
        examples=(f"songline drain WORKER --broker {_REDIS}",),
    ),
    Command(
        "undrain", "have a drained worker take jobs again", "compose.workers:undrain",
        (Argument("worker", "its name"),), examples=(f"songline undrain WORKER --broker {_REDIS}",),
    ),
)  # fmt: skip

_EPILOG = (
    "Every flag may also be given by its environment variable, in brackets. Exit codes: 0 done, 1 failed, 2 wrong "
    "usage, 3 the server or Redis does not answer, 4 no checkpoint, 5 the port is in use, 6 nothing can be said "
    "(verify), 130 interrupted."
)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="songline", description="Event-sourced serving of two-stage speech and music models over Redis Streams.",
        epilog=_epilog(("songline up", 'songline say "The river knows the way."')),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    top.add_argument("--version", action="version", version=f"songline {own_version()}")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = subparsers.add_parser(
            command.name, help=command.help, description=f"{command.help[0].upper()}{command.help[1:]}.",
            epilog=_epilog(command.examples), formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        for argument in command.arguments:
            sub.add_argument(argument.name, help=argument.help, nargs="?" if argument.optional else None)
        add_flags(sub, command.name)
    return top


def _epilog(examples: Sequence[str]) -> str:
    shown = "".join(f"  {example}\n" for example in examples)
    return f"examples:\n{shown}\n{textwrap.fill(_EPILOG, 100)}"


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
        code = getattr(importlib.import_module(module), function)(args) or 0
        sys.stdout.flush()
        return code
    except BadSetting as error:
        print(f"songline: {error}", file=sys.stderr)
        return USAGE
    except Trouble as error:
        print(f"songline: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or what is left in it fails once more at exit
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
