"""Hear a job to its end: its sound goes to where the flags say as it comes, its progress to standard error."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compose.connecting import connected
from compose.outlets import STDOUT, check, opened
from compose.player import player_here
from compose.progress import Progress
from compose.trouble import FAILED, INTERRUPTED, Trouble
from producer import Job, JobEnded, Songline
from producer.wav import SAMPLE_BYTES


@dataclass(frozen=True, slots=True)
class Heard:
    """How a job ended for its listener. Times in seconds from the start of the command; sha256 of all PCM that came."""

    job: Job
    ended: JobEnded | None  # why it is not completed
    audio: float
    first_audio: float | None
    took: float
    sha256: str

    @property
    def status(self) -> str:
        return "completed" if self.ended is None else self.ended.status


def send_and_hear(args: argparse.Namespace, body: Mapping[str, Any], *, aloud: bool) -> int:
    """Send a request, and hear it to its end; the exit code. Who stops listening cancels the job.

    `aloud`: where no flag says what to do with the sound, it is played, or else saved.
    """
    check(args.out, args.format, play=args.play)
    with connected(args) as songline:
        began, key = time.perf_counter(), uuid.uuid4().hex
        try:
            job = songline.submit(body, idempotency_key=key)
            print(f"{job.id}  seed {job.seed}", file=sys.stderr)
            out, play = _destination(args, job) if aloud else (args.out, args.play)
            heard = hear(job, began, out=out, format_=args.format, play=play)
        except (KeyboardInterrupt, BrokenPipeError, Trouble) as unheard:
            _cancel(songline, body, key)
            if isinstance(unheard, KeyboardInterrupt):
                return INTERRUPTED
            raise
    return report(heard, out, as_json=args.as_json)


def _cancel(songline: Songline, body: Mapping[str, Any], key: str) -> None:
    job = songline.submit(body, idempotency_key=key)  # the same job, also where its answer was still on its way
    print(f"\n{job.cancel().status} {job.id}", file=sys.stderr)


def _destination(args: argparse.Namespace, job: Job) -> tuple[Path | None, bool]:
    """Where the sound of what is said aloud goes: a file, and whether to a player."""
    if args.out is not None or args.play:
        return args.out, bool(args.play)
    if args.play is None and player_here() is not None:
        return None, True
    return Path(f"{job.id}.{args.format}"), False


def hear(job: Job, began: float, *, out: Path | None, format_: str = "wav", play: bool | None = False) -> Heard:
    """Follow a job to its end, and write its sound as it comes. Raises Trouble, BrokenPipeError."""
    rate, channels = job.shape()
    bytes_per_second = SAMPLE_BYTES * channels * rate
    first, heard, ended, digest = None, 0, None, hashlib.sha256()
    with opened(out, format_, play=play, rate=rate, channels=channels) as outlets, Progress() as progress:
        try:
            for chunk in job:
                for outlet in outlets:
                    outlet.write(chunk.pcm)
                digest.update(chunk.pcm)
                heard += len(chunk.pcm)
                first = first or time.perf_counter() - began
                progress.show(heard / bytes_per_second, time.perf_counter() - began)
        except JobEnded as error:
            ended = error
        took = time.perf_counter() - began
    return Heard(job, ended, heard / bytes_per_second, first, took, digest.hexdigest())


def report(heard: Heard, out: Path | None, *, as_json: bool) -> int:
    """Say how a job ended; the exit code. Standard output is the sound's where it goes there."""
    told = sys.stderr if out == STDOUT else sys.stdout
    if as_json:
        print(json.dumps(_view(heard, out), ensure_ascii=False), file=told)
    if heard.ended is not None:
        print(f"{heard.job.id}  {heard.status}  {heard.ended.message}".rstrip(), file=sys.stderr)
        return FAILED
    if not as_json:
        print(f"{heard.job.id}  completed: {heard.audio:.2f} s of sound in {heard.took:.2f} s", file=told)
        if out not in (None, STDOUT):
            print(out, file=told)
    return 0


def _view(heard: Heard, out: Path | None) -> dict[str, Any]:
    return {
        "id": heard.job.id,
        "status": heard.status,
        "model": heard.job.model,
        "seed": heard.job.seed,
        "audio_seconds": heard.audio,
        "first_audio_s": heard.first_audio,
        "took_s": heard.took,
        "sha256": heard.sha256,
        "file": None if out is None else str(out),
        "error": heard.ended and {"code": heard.ended.code, "message": heard.ended.message},
    }
