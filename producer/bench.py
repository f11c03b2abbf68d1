"""Load on a server by URL, and what its listeners lived through. All times in seconds.

Closed loop: a fixed number of listeners, each sending its next request when the last one ended. Open loop: requests
come at a given rate whatever the server does, and every time is counted from when the request was due, so that a
server which falls behind cannot hide it.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from producer.listening import Arrival, longest_gap, percentiles, underrun

FORMAT = 1  # of the JSON report
VIA = ("speech", "jobs")
_BYTES_PER_SAMPLE = 2
_STRIDE = 37  # between the lengths of neighbouring requests
_JOB_ID = re.compile(r"job_[a-z2-7]{32}")


class BadServer(Exception):
    """The server cannot be measured. `str()` says what to do about it."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the load goes.

    `body` is the request but for its seed; request number i has seed `first_seed` + i. `frames`: the least and the most
    frames that requests ask for, each another number of them; as the body says where it is None.
    """

    url: str
    body: dict[str, Any]
    first_seed: int = 0
    via: str = "speech"
    api_key: str | None = None
    timeout_s: float = 600.0
    frames: tuple[int, int] | None = None

    def request(self, number: int) -> dict[str, Any]:
        """The body of request `number`."""
        request = {**self.body, "seed": self.first_seed + number}
        if self.frames is not None:
            least, most = self.frames
            request["max_new_tokens"] = least + number * _STRIDE % (most - least + 1)
        return request


@dataclass(frozen=True, slots=True)
class Load:
    """One level: `concurrency` listeners at a time (closed loop), or `rate` requests a second (open loop)."""

    requests: int
    concurrency: int | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        return f"{self.concurrency} at a time" if self.rate is None else f"{self.rate:g} a second"


@dataclass(frozen=True, slots=True)
class Heard:
    """One request's outcome; times from when it was due."""

    seed: int
    late: float  # how long after it was due the request was sent
    arrivals: tuple[Arrival, ...]
    took: float
    sha256: str | None  # of all the PCM bytes; None where it failed
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def audio(self) -> float:
        return sum(arrival.plays for arrival in self.arrivals)


class Listener:
    """Sends requests to a target, and hears their sound to the end."""

    def __init__(self, target: Target, client: httpx.AsyncClient, bytes_per_second: float) -> None:
        self._target = target
        self._client = client
        self._bytes_per_second = bytes_per_second

    async def hear(self, number: int, due: float | None = None) -> Heard:
        """Request `number`, due at `due` on the clock of `time.perf_counter`, or now."""
        request = self._target.request(number)
        sent = time.perf_counter()
        due = sent if due is None else due
        arrivals: list[Arrival] = []
        heard = hashlib.sha256()
        error = None
        try:
            async with asyncio.timeout(self._target.timeout_s):
                async for pcm in self._sound(request):
                    arrivals.append(Arrival(time.perf_counter() - due, len(pcm) / self._bytes_per_second))
                    heard.update(pcm)
            error = None if arrivals else "the song ended without a sound"
        except TimeoutError:
            error = f"not done within {self._target.timeout_s:g} s"
        except (httpx.HTTPError, BadServer) as failure:
            error = str(failure) or type(failure).__name__
        took = time.perf_counter() - due
        return Heard(request["seed"], sent - due, tuple(arrivals), took, None if error else heard.hexdigest(), error)

    async def _sound(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        if self._target.via == "jobs":
            answer = await self._client.post("/v1/jobs", json=body)
            await _refuse_errors(answer)
            job = answer.json()["id"]
            request = self._client.stream("GET", f"/v1/jobs/{job}/stream", params={"format": "pcm"})
        else:
            job = None
            body = {**body, "response_format": "pcm", "stream_format": "audio"}
            request = self._client.stream("POST", "/v1/audio/speech", json=body)
        try:
            async with request as answer:
                await _refuse_errors(answer)
                async for pcm in answer.aiter_bytes():
                    yield pcm
        except httpx.HTTPError as cut:
            raise BadServer(await self._why(job) or str(cut) or type(cut).__name__) from cut

    async def _why(self, job: str | None) -> str | None:
        """Why a job's stream was cut, where the job knows."""
        if job is None:
            return None
        with suppress(httpx.HTTPError, ValueError):
            ended = (await self._client.get(f"/v1/jobs/{job}")).json()
            if ended["status"] in ("failed", "cancelled"):
                return f"{ended['status']}: {(ended.get('error') or {}).get('message', '')}".rstrip(": ")
        return None


async def _refuse_errors(answer: httpx.Response) -> None:
    if answer.status_code < 400:
        return
    await answer.aread()
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = answer.text[:200]
    raise BadServer(f"{answer.status_code}: {message}")


def arrival_times(rate: float, requests: int, seed: int = 0) -> list[float]:
    """When requests are due in an open loop, from 0 on: independent of one another, `rate` a second on average."""
    draws = random.Random(seed)
    gaps = [draws.expovariate(rate) for _ in range(requests - 1)]
    return list(itertools.accumulate(gaps, initial=0.0))


async def run_level(listener: Listener, load: Load) -> tuple[list[Heard], float]:
    """All of a level's outcomes, in the order of their numbers, and how long the level took."""
    begin = time.perf_counter()
    outcomes: list[Heard] = []
    if load.rate is None:
        numbers = iter(range(load.requests))

        async def loop() -> None:
            for number in numbers:
                outcomes.append(await listener.hear(number))

        await asyncio.gather(*(loop() for _ in range(load.concurrency or 1)))
    else:

        async def one(number: int, due: float) -> None:
            await asyncio.sleep(begin + due - time.perf_counter())
            outcomes.append(await listener.hear(number, begin + due))

        due_times = arrival_times(load.rate, load.requests)
        await asyncio.gather(*(one(number, due) for number, due in enumerate(due_times)))
    return sorted(outcomes, key=lambda outcome: outcome.seed), time.perf_counter() - begin


def summary(load: Load, outcomes: Sequence[Heard], wall: float) -> dict[str, Any]:
    """A level's figures, as the JSON report has them; figures of sound are over the requests that succeeded."""
    good = [outcome for outcome in outcomes if outcome.ok]
    silences = [underrun(outcome.arrivals) for outcome in good]
    audio = sum(outcome.audio for outcome in good)
    return {
        "load": "closed" if load.rate is None else "open",
        "concurrency": load.concurrency,
        "rate": load.rate,
        "requests": len(outcomes),
        "ok": len(good),
        "failed": len(outcomes) - len(good),
        "errors": dict(Counter(_JOB_ID.sub("job_…", outcome.error) for outcome in outcomes if outcome.error)),
        "wall_s": wall,
        "audio_s": audio,
        "audio_s_per_s": audio / wall if wall else 0.0,
        "first_audio_s": percentiles([outcome.arrivals[0].at for outcome in good]),
        "end_to_end_s": percentiles([outcome.took for outcome in good]),
        "longest_gap_s": max((longest_gap(outcome.arrivals) for outcome in good), default=0.0),
        "underrun": {
            "total_s": sum(silences),
            "p95_s": percentiles(silences)["p95"],
            "share": sum(silence > 0 for silence in silences) / len(good) if good else 0.0,
        },
        "sent_late_s": max((outcome.late for outcome in outcomes), default=0.0),
        "results": [_result(outcome) for outcome in outcomes],
    }


def _result(outcome: Heard) -> dict[str, Any]:
    return {
        "seed": outcome.seed,
        "sha256": outcome.sha256,
        "audio_s": outcome.audio,
        "first_audio_s": outcome.arrivals[0].at if outcome.arrivals else None,
        "end_to_end_s": outcome.took,
        "longest_gap_s": longest_gap(outcome.arrivals),
        "underrun_s": underrun(outcome.arrivals),
        "error": outcome.error,
    }


async def bench(
    target: Target,
    loads: Sequence[Load],
    *,
    warm_up: int = 0,
    done: Callable[[dict[str, Any]], None] = lambda level: None,
) -> dict[str, Any]:
    """Measure every load in turn; `done` sees each level's figures as they come.

    Raises:
        BadServer: there is no server at the URL, or it does not serve the model.
    """
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=target.url, headers=headers, limits=limits, timeout=None) as client:
        model = await served_model(client, target.body.get("model"))
        rate = model["sample_rate"] * model["channels"] * _BYTES_PER_SAMPLE
        target.body["model"] = model["id"]
        listener = Listener(target, client, rate)
        for number in range(warm_up):
            await listener.hear(number)
        levels = []
        for load in loads:
            levels.append(summary(load, *await run_level(listener, load)))
            done(levels[-1])
    return {
        "format": FORMAT,
        "url": target.url,
        "via": target.via,
        "body": target.body,
        "first_seed": target.first_seed,
        "frames": target.frames,
        "levels": levels,
    }


async def served_model(client: httpx.AsyncClient, name: str | None) -> dict[str, Any]:
    """The model's entry in the server's list; the first one where no name is given. Raises BadServer."""
    try:
        answer = await client.get("/v1/models")
    except httpx.HTTPError as error:
        raise BadServer(f"no answer from {client.base_url}: {error}; is `songline up` running there?") from error
    await _refuse_errors(answer)
    models = answer.json()["data"]
    for model in models:
        if name in (None, model["id"]):
            return model
    served = ", ".join(model["id"] for model in models) or "none"
    raise BadServer(f"the server has no model {name!r}; it serves: {served}")
