"""The commands that speak to a running api: submit, follow, cancel, show, jobs. Results go to standard output,
progress to standard error."""

from __future__ import annotations

import argparse
import json
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from compose.progress import Progress
from compose.sse import Message, messages
from compose.trouble import FAILED, INTERRUPTED, UNREACHABLE, USAGE, Trouble
from compose.wav import WavWriter, check_writable

_ENDS = ("completed", "failed", "cancelled", "expired")  # events that end a stream
_TRIES = 5  # connections in a row that bring nothing, before a stream is given up


@dataclass(frozen=True, slots=True)
class Song:
    """What `submit` and `follow` heard. Times in seconds from the start of the command."""

    job: str
    status: str
    audio: float
    first_audio: float | None
    took: float


class Api:
    """The api at a URL. Every answer that is an error becomes Trouble."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.url = url
        self._http = httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(30, read=60))

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def call(self, verb: str, path: str, **options: Any) -> dict[str, Any]:
        """A request's JSON answer. Raises Trouble."""
        try:
            answer = self._http.request(verb, path, **options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error
        if answer.status_code >= 400:
            raise _refused(answer)
        return answer.json()

    def stream(self, job: str) -> Iterator[Message]:
        """The job's chunks and its end; a broken connection is taken up again where it broke. Raises Trouble."""
        last, tries = None, 0
        while True:
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
            try:
                with self._http.stream("GET", f"/v1/jobs/{job}/stream", headers=headers) as answer:
                    if answer.status_code >= 400:
                        answer.read()
                        raise _refused(answer)
                    for message in messages(answer.iter_lines()):
                        last, tries = message.id or last, 0
                        yield message
                        if message.event in _ENDS:
                            return
            except httpx.HTTPError as error:
                tries += 1
                if tries == _TRIES:
                    raise self._unreachable(error) from error
                time.sleep(0.2 * 2**tries)
            else:
                tries += 1
                if tries == _TRIES:
                    raise Trouble(f"the stream of {job} ends before the job does; ask `songline show {job}`", FAILED)

    def _unreachable(self, error: Exception) -> Trouble:
        return Trouble(
            f"no answer from {self.url}: {error}\nStart a server with `songline up`, or name another with --url",
            UNREACHABLE,
        )


def _refused(answer: httpx.Response) -> Trouble:
    try:
        error = answer.json()["error"]
        message = error["message"]
        if error.get("param") and error["param"] not in message:
            message = f"{error['param']}: {message}"
    except (ValueError, KeyError, TypeError):
        message = answer.text[:500]
    wait = f"; try again in {answer.headers['Retry-After']} s" if "Retry-After" in answer.headers else ""
    return Trouble(f"{message}{wait} ({answer.status_code})", USAGE if answer.status_code in (400, 422) else FAILED)


def submit(args: argparse.Namespace) -> int:
    body = song_body(args)
    check_writable(args.out)
    with Api(args.url, args.api_key) as api:
        began = time.perf_counter()
        order = {"json": body, "headers": {"Idempotency-Key": str(uuid.uuid4())}}
        try:
            job = api.call("POST", "/v1/jobs", **order)
            if args.detach:
                print(job["id"])
                return 0
            print(f"{job['id']}  seed {job['seed']}", file=sys.stderr)
            song = hear(api, job["id"], args.out, began)
        except KeyboardInterrupt:
            job = api.call("POST", "/v1/jobs", **order)  # the same job, also where its answer was still on its way
            api.call("DELETE", f"/v1/jobs/{job['id']}")
            print(f"\ncancelled {job['id']}", file=sys.stderr)
            return INTERRUPTED
        return report(api, song, args.out)


def follow(args: argparse.Namespace) -> int:
    with Api(args.url, args.api_key) as api:
        return report(api, hear(api, args.job, args.out, time.perf_counter()), args.out)


def cancel(args: argparse.Namespace) -> None:
    with Api(args.url, args.api_key) as api:
        job = api.call("DELETE", f"/v1/jobs/{args.job}")
        print(f"{args.job}  {job['status']}")


def show(args: argparse.Namespace) -> None:
    with Api(args.url, args.api_key) as api:
        print(json.dumps(api.call("GET", f"/v1/jobs/{args.job}"), indent=2, ensure_ascii=False))


def jobs(args: argparse.Namespace) -> None:
    wanted = {"limit": args.limit} | ({"status": args.status} if args.status else {})
    with Api(args.url, args.api_key) as api:
        for job in api.call("GET", "/v1/jobs", params=wanted)["data"]:
            status = job["status"] or "unreadable"
            print(f"{job['id']}  {status:<10} {job.get('model') or '':<20} {job['audio_seconds'] or 0:8.2f} s")


def song_body(args: argparse.Namespace) -> dict[str, Any]:
    """The request that the flags describe. Raises Trouble."""
    if args.lyrics is None:
        raise Trouble("say what to sing: --lyrics FILE, or --lyrics - to type it in", USAGE)
    try:
        lyrics = sys.stdin.read() if args.lyrics == "-" else Path(args.lyrics).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Trouble(f"cannot read the lyrics from {args.lyrics}: {error}", USAGE) from error
    wanted = {
        "model": args.model,
        "input": lyrics,
        "instructions": args.caption,
        "seed": args.seed,
        "max_new_tokens": args.frames,
    }
    return {field: value for field, value in wanted.items() if value is not None}


def hear(api: Api, job: str, out: Path | None, began: float) -> Song:
    """Follow a job to its end, and write its sound to `out` as it comes."""
    shape = api.call("GET", f"/v1/jobs/{job}")
    rate, channels = shape["sample_rate"], shape["channels"]
    first, audio, status = None, 0.0, ""
    with WavWriter(out, rate, channels) as wav, Progress() as progress:
        for message in api.stream(job):
            if message.event == "audio.chunk":
                wav.write(message.pcm())
                audio = wav.samples / rate
                first = first or time.perf_counter() - began
            elif message.event in _ENDS:
                status = message.event
            progress.show(audio, time.perf_counter() - began)
    return Song(job, status, audio, first, time.perf_counter() - began)


def report(api: Api, song: Song, out: Path | None) -> int:
    """Say how a song ended; the exit code."""
    if song.status != "completed":
        error = api.call("GET", f"/v1/jobs/{song.job}").get("error") or {}
        print(f"{song.job}  {song.status}  {error.get('message', '')}".rstrip(), file=sys.stderr)
        return FAILED
    print(f"{song.job}  completed: {song.audio:.2f} s of sound in {song.took:.2f} s")
    if out:
        print(out)
    return 0
