"""`songline verify`: compute a job again, and hold its sound against the first one's, chunk by chunk.

What is compared is the sha256 of each chunk's samples. The second job is forgotten again, whatever comes of it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from compose.connecting import connected
from compose.progress import Progress
from compose.trouble import FAILED, UNVERIFIABLE, Trouble
from producer import Chunk, Job, JobEnded, Refused, Songline

_RESOLVED = ("passages", "chunk_ramp")  # parameters that the contract adds by itself, and takes from nobody


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a job computed again had.

    chunks: how many of its chunks are the first job's, from the start on. difference: what the next one has other than
    it should; None where all is the same. at: where that is in the sound, in seconds.
    """

    job: str
    chunks: int
    same: bool
    difference: str | None = None
    at: float | None = None


def verify(args: argparse.Namespace) -> int:
    with connected(args) as songline:
        verdict = verified(songline, args.job)
    if args.as_json:
        print(json.dumps(asdict(verdict)))
    elif verdict.same:
        print(f"{verdict.job}  the same bytes: {verdict.chunks} of {verdict.chunks} chunks")
    else:
        print(f"{verdict.job}  OTHER bytes in chunk {verdict.chunks}, at {verdict.at:.2f} s: {verdict.difference}")
    return 0 if verdict.same else FAILED


def verified(songline: Songline, job: str) -> Verdict:
    """Raises Trouble where nothing can be said; SonglineError."""
    first, wanted = _first(songline, job)
    again = songline.submit(request_of(first))
    print(f"computed again as {again.id}", file=sys.stderr)
    try:
        return _compared(first, wanted, again)
    except JobEnded as ended:
        raise _cannot(f"the job that computes it again ended: {ended}") from ended
    finally:
        again.purge()


def _first(songline: Songline, id_: str) -> tuple[Job, list[str]]:
    """The job that is verified, and the sha256 of each of its chunks."""
    try:
        job = songline.job(id_)
        if job.status != "completed":
            raise _cannot(f"{job.id} is {job.status}, and only a completed job has all of its sound")
        return job, [_sha256(chunk) for chunk in job]
    except (Refused, JobEnded) as error:
        if error.code != "job_expired":
            raise
        raise _cannot(str(error)) from error


def request_of(job: Job) -> dict[str, Any]:
    """A request for the very same sound, of what the api shows of a job. Raises Trouble where it does not show all."""
    state = job.state
    params = {
        name: value
        for name, value in state["params"].items()
        if name not in _RESOLVED and value is not None and value != ""
    }
    if "ref_audio" in params:  # of which the job keeps the sha256
        if not state["voice"]:
            raise _cannot(f"{job.id} cloned a recording that came with its request, which the api does not give back")
        params.pop("ref_audio")
    if state["voice"]:
        params["voice"] = state["voice"]
    return {"model": job.model, "input": state["input"], "seed": job.seed, **params}


def _compared(first: Job, wanted: Sequence[str], again: Job) -> Verdict:
    """Hear the second job until it is other than the first."""
    if other := _differing(first.state["params"], again.state["params"]):
        raise _cannot(f"the same request is understood otherwise now: {', '.join(other)}")
    began, seconds, heard = time.perf_counter(), 0.0, 0
    with Progress() as progress:
        for chunk in again:
            if chunk.index == 0:  # both roles have taken the job by then
                _check_profiles(_profiles(first), _profiles(again))
            if difference := _difference(_sha256(chunk), wanted[chunk.index : chunk.index + 1]):
                return Verdict(first.id, heard, False, difference, seconds)
            heard, seconds = chunk.index + 1, seconds + chunk.seconds
            progress.show(seconds, time.perf_counter() - began)
    if heard < len(wanted):
        return Verdict(first.id, heard, False, f"the sound ends here, {len(wanted) - heard} chunks early", seconds)
    return Verdict(first.id, heard, True)


def _sha256(chunk: Chunk) -> str:
    return hashlib.sha256(chunk.pcm).hexdigest()


def _difference(sha256: str, wanted: Sequence[str]) -> str | None:
    if not wanted:
        return "the sound goes on, and ended here the first time"
    return None if sha256 == wanted[0] else f"sha256 {sha256}, and {wanted[0]} the first time"


def _profiles(job: Job) -> dict[str, str]:
    """The profile that each role's first worker pinned."""
    admitted = (event["data"] for event in job.events() if event["type"] == "job.admitted")
    return {data["role"]: data["profile"] for data in admitted}


def _check_profiles(first: Mapping[str, str], now: Mapping[str, str]) -> None:
    for role in _differing(first, now):
        raise _cannot(
            f"the {role} worker's profile is another now (weights, versions, device or threads): {now.get(role)}, and "
            f"{first.get(role)} the first time; other bytes would say nothing"
        )


def _differing(first: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in first.keys() | now.keys() if first.get(name) != now.get(name))


def _cannot(why: str) -> Trouble:
    return Trouble(f"cannot be verified: {why}", UNVERIFIABLE)
