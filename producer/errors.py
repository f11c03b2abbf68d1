"""What a client of the api may run into. Every error has a `code` for programs; `str()` is for people."""

from __future__ import annotations

import httpx


class SonglineError(Exception):
    """The base of them all."""

    code = "songline_error"


class Unreachable(SonglineError):
    """No answer comes from the api, or a stream broke off again and again."""

    code = "unreachable"

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"no answer from {url}: {why}")
        self.url = url


class Refused(SonglineError):
    """The api answered with an error.

    status: of HTTP. code: the api's, such as "queue_full". field: of the request, where one is to blame. retry_after:
    seconds to wait before trying again, where that may help.
    """

    def __init__(
        self, message: str, status: int, code: str, field: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.field = field
        self.retry_after = retry_after

    @classmethod
    def of(cls, answer: httpx.Response) -> Refused:
        """An answer of 400 and over, read to its end."""
        try:
            error = answer.json()["error"]
            message, code, field = error["message"], error.get("code") or "error", error.get("param")
        except (ValueError, KeyError, TypeError, AttributeError):  # from something before the api
            message, code, field = answer.text[:500], f"http_{answer.status_code}", None
        wait = answer.headers.get("Retry-After", "")
        return cls(message, answer.status_code, code, field, float(wait) if wait.isdigit() else None)


class JobEnded(SonglineError):
    """The job is over and has not all of its sound.

    status: failed, cancelled or expired. code: why it failed, or "job_cancelled", "job_expired". retryable: whether
    the same request may succeed if it is sent again.
    """

    def __init__(self, job: str, status: str, message: str, code: str, *, retryable: bool = False) -> None:
        super().__init__(f"{job} {status}: {message}")
        self.job = job
        self.status = status
        self.message = message
        self.code = code
        self.retryable = retryable


class NotInTime(SonglineError, TimeoutError):
    """A job was not over within the time that `wait` was given; it goes on."""

    code = "not_in_time"

    def __init__(self, job: str, seconds: float) -> None:
        super().__init__(f"{job} is not over after {seconds:g} s, and goes on")
        self.job = job
