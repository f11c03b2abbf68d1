"""`songline say` and `songline sing`: a text as an argument, from a file or standard input, to be heard at once."""

from __future__ import annotations

import argparse
import sys

from compose.client import read_text
from compose.hearing import send_and_hear
from compose.trouble import USAGE, Trouble
from producer.orders import song, speech


def say(args: argparse.Namespace) -> int:
    body = speech(
        _text(args.text), model=args.model, voice=args.voice, instructions=args.instructions, seed=args.seed,
        language=args.language, max_new_tokens=args.frames,
    )  # fmt: skip
    return send_and_hear(args, body, aloud=True)


def sing(args: argparse.Namespace) -> int:
    if args.text is not None and args.lyrics is not None:
        raise Trouble("the lyrics came twice: as an argument, and with --lyrics", USAGE)
    lyrics = _text(args.text) if args.lyrics is None else read_text(args.lyrics, "the lyrics")
    body = song(lyrics, caption=args.caption, model=args.model, seed=args.seed, max_new_tokens=args.frames)
    return send_and_hear(args, body, aloud=True)


def _text(given: str | None) -> str:
    if given not in (None, "-"):
        return given
    if sys.stdin.isatty():
        print("type the text, then Ctrl-D", file=sys.stderr)
    return read_text("-", "the text")
