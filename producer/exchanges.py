"""What a client asks of the api, call by call, without doing I/O: both clients run the same exchanges.

An exchange is a generator: it yields calls, is sent each one's JSON answer, and returns its result.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import httpx

from producer.errors import JobEnded, NotInTime, Refused, Unreachable

T = TypeVar("T")
State: TypeAlias = dict[str, Any]  # a job, as GET /v1/jobs/{id} shows it
FINAL = ("completed", "failed", "cancelled")
TIMEOUT = httpx.Timeout(30, read=60)
_HELD_S = 20.0  # how long a poll asks the api to wait for news; below the timeout for reading
_PAGE = 100  # the most jobs that the api lists at once


@dataclass(frozen=True, slots=True)
class Call:
    """A request, which may be sent again: none of the api's does anything twice."""

    verb: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    json: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def options(self) -> dict[str, Any]:
        """For httpx's `request`."""
        body = {} if self.json is None else {"json": self.json}
        return {"params": dict(self.params), "headers": dict(self.headers), **body}


Exchange: TypeAlias = Generator[Call, Any, T]


def headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """Raises Unreachable where the block's I/O fails."""
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unreachable(url, str(error) or type(error).__name__) from error


def checked(answer: httpx.Response) -> None:
    """Raises Refused for an answer that is an error, and has been read."""
    if answer.status_code >= 400:
        raise Refused.of(answer)


def answered(answer: httpx.Response) -> Any:
    """An answer's JSON. Raises Refused."""
    checked(answer)
    try:
        return answer.json()
    except ValueError:
        raise Refused("what answers there is no Songline api", answer.status_code, "no_api") from None


def submit(body: Mapping[str, Any], idempotency_key: str | None) -> Exchange[State]:
    key = idempotency_key or uuid.uuid4().hex
    return (yield Call("POST", "/v1/jobs", json=dict(body), headers={"Idempotency-Key": key}))


def look(job: str) -> Exchange[State]:
    return (yield Call("GET", f"/v1/jobs/{job}"))


def jobs(status: str | None, model: str | None, limit: int) -> Exchange[list[State]]:
    """The newest jobs first, over as many pages as it takes."""
    wanted = {name: value for name, value in {"status": status, "model": model}.items() if value is not None}
    found: list[State] = []
    while len(found) < limit:
        page = yield Call("GET", "/v1/jobs", params={**wanted, "limit": min(_PAGE, limit - len(found))})
        found += page["data"]
        if not page["next_cursor"]:
            break
        wanted["cursor"] = page["next_cursor"]
    return found


def cancel(job: str) -> Exchange[State]:
    return (yield Call("DELETE", f"/v1/jobs/{job}"))


def purge(job: str) -> Exchange[None]:
    yield Call("DELETE", f"/v1/jobs/{job}", params={"purge": "true"})


def events(job: str) -> Exchange[list[dict[str, Any]]]:
    return (yield Call("GET", f"/v1/jobs/{job}/events"))["data"]


def models() -> Exchange[list[dict[str, Any]]]:
    return (yield Call("GET", "/v1/models"))["data"]


def wait(job: str, timeout: float | None) -> Exchange[State]:
    """The completed job. Raises JobEnded, NotInTime."""
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _HELD_S if until is None else max(0.0, min(_HELD_S, until - time.monotonic()))
        state = yield Call("GET", f"/v1/jobs/{job}", params={"wait": left})
        if state["status"] in FINAL:
            completed(state)
            return state
        if timeout is not None and until is not None and time.monotonic() >= until:
            raise NotInTime(job, timeout)


def completed(state: State) -> None:
    """Raises JobEnded where the job was failed or cancelled."""
    if state["status"] == "failed":
        error = state.get("error") or {}
        message, code = error.get("message") or "no reason was given", error.get("code") or "job_failed"
        raise JobEnded(state["id"], "failed", message, code, retryable=bool(error.get("retryable")))
    if state["status"] == "cancelled":
        raise JobEnded(state["id"], "cancelled", f"by {state.get('cancelled_by')}", "job_cancelled", retryable=True)
