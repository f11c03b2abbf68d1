"""The api that a command's flags name, with its errors told as the command line tells them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from compose.trouble import FAILED, UNREACHABLE, USAGE, Trouble
from producer import Refused, Songline, SonglineError, Unreachable


@contextmanager
def connected(args: argparse.Namespace) -> Iterator[Songline]:
    """Raises Trouble for every error of the client."""
    try:
        with Songline(args.url, api_key=args.api_key) as songline:
            yield songline
    except SonglineError as error:
        raise as_trouble(error) from error


def as_trouble(error: SonglineError) -> Trouble:
    match error:
        case Unreachable():
            return Trouble(f"{error}\nStart a server with `songline up`, or name another with --url", UNREACHABLE)
        case Refused():
            return Trouble(_told(error), USAGE if error.status in (400, 422) else FAILED)
    return Trouble(str(error), FAILED)


def _told(refused: Refused) -> str:
    message = str(refused)
    if refused.field and refused.field not in message:
        message = f"{refused.field}: {message}"
    wait = "" if refused.retry_after is None else f"; try again in {refused.retry_after:g} s"
    return f"{message}{wait} ({refused.status})"
