"""Every error that the api answers, in OpenAI's shape: {"error": {message, type, param, code}}."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import redis.exceptions
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from broker_schemas.codec import DecodeError
from broker_schemas.contract import BadField
from broker_schemas.job import BrokenLog, JobState, Status
from producer.follow import Expired
from producer.submit import Full, KeyReused, TooLarge

_log = logging.getLogger(__name__)

# The broker cannot be reached, or cannot take writes now; what else it says is an error of this program.
BROKER_AWAY = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.ClusterDownError,
    ConnectionError,
    TimeoutError,
)
_CANNOT_NOW = ("MISCONF", "NOREPLICAS", "CLUSTERDOWN", "MASTERDOWN", "OOM", "READONLY")  # errors without a class
_QUOTED = 100  # characters shown of what a client sent
_NO_RETRY = {"x-should-retry": "false"}  # OpenAI's clients else send a 409 or 500 again


class ApiError(Exception):
    """An answer other than the one asked for. `message` says what to do."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param and param[:_QUOTED]
        self.headers = headers or {}

    @property
    def type(self) -> str:
        match self.status:
            case 401:
                return "authentication_error"
            case 429:
                return "rate_limit_error"
            case status if status >= 500:
                return "server_error"
        return "invalid_request_error"

    def body(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, headers=self.headers)


class Stopping(ApiError):
    """This process is shutting down; the job goes on."""

    def __init__(self, job: str) -> None:
        super().__init__(
            503, f"This api process is shutting down. Job {job} goes on: GET /v1/jobs/{job} from another one.",
            code="api_stopping", headers={"Retry-After": "1", **_NO_RETRY},
        )  # fmt: skip


def quoted(sent: Any) -> str:
    """What a client sent, as an error message shows it."""
    text = repr(sent)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"


def unknown_job(job: str) -> ApiError:
    message = f"There is no job {quoted(job)}: use an id that POST /v1/jobs returned to you."
    return ApiError(404, message, code="job_not_found")


def expired_job(job: str) -> ApiError:
    return ApiError(
        410, f"Job {job} has expired or was purged: submit the request again, with its seed for the same sound.",
        code="job_expired",
    )  # fmt: skip


def unknown_model(model: str, known: list[str]) -> ApiError:
    return ApiError(
        404, f"There is no model {quoted(model)} here: use one of {', '.join(known) or '(none is served)'}.",
        code="model_not_found", param="model",
    )  # fmt: skip


def broker_cannot(error: BaseException) -> bool:
    """Whether the broker is away, or cannot take writes now."""
    said = isinstance(error, redis.exceptions.ResponseError) and str(error).startswith(_CANNOT_NOW)
    return said or isinstance(error, BROKER_AWAY)


def broker_away(error: Exception) -> ApiError:
    why = str(error).split()[0] if str(error).startswith(_CANNOT_NOW) else type(error).__name__
    return ApiError(
        503, f"The broker cannot be used now ({why}): try again in some seconds.",
        code="broker_unavailable", headers={"Retry-After": "2"},
    )  # fmt: skip


def without_sound(state: JobState) -> ApiError:
    """Why a job that is not completed has no audio file."""
    if state.error is not None:
        message = f"Job {state.id} failed and has no file: {state.error.message}"
        return ApiError(409, message, code="job_failed", headers=_NO_RETRY)
    if state.status is Status.CANCELLED:
        message = f"Job {state.id} was cancelled (by {state.cancelled_by}) and has no file: submit it again."
        return ApiError(409, message, code="job_cancelled", headers=_NO_RETRY)
    return ApiError(
        409, f"Job {state.id} is {state.status}: GET /v1/jobs/{state.id}?wait=20 until it is completed, "
        f"or listen to it now at /v1/jobs/{state.id}/stream.",
        code="job_not_completed", headers={"Retry-After": "2", **_NO_RETRY},
    )  # fmt: skip


def ended_without_sound(state: JobState) -> ApiError:
    """What a request that waited for its job's sound answers when the job failed or was cancelled."""
    failed = state.error
    if failed is None:
        return without_sound(state)
    if failed.retryable:
        return ApiError(503, failed.message, code=failed.code, headers={"Retry-After": "1"})
    return ApiError(500, failed.message, code=failed.code, headers=_NO_RETRY)


def as_api_error(error: Exception) -> ApiError:
    """Any exception as the answer that it deserves."""
    match error:
        case ApiError():
            return error
        case BadField():
            return ApiError(400, str(error), code="invalid_value", param=error.field)
        case Full():
            message = f"The queue is full: {error}."
            return ApiError(429, message, code="queue_full", headers={"Retry-After": str(error.retry_after)})
        case TooLarge():
            what_to_do = "Lower max_new_tokens or shorten input, or have the operator raise --max-bytes."
            message = f"This is too large: {error}. {what_to_do}"
            return ApiError(400, message, code="job_too_large", param="max_new_tokens")
        case KeyReused():
            return ApiError(422, f"{error}.", code="idempotency_key_reused", param="Idempotency-Key")
        case Expired():
            return expired_job(str(error))
        case BrokenLog() | DecodeError():
            message = f"The job's log cannot be read: {error}. Upgrade songline, or DELETE the job with ?purge=true."
            return ApiError(500, message, code="log_unreadable", headers=_NO_RETRY)
        case ClientDisconnect():
            return ApiError(400, "The connection was closed before the whole body had come.", code="body_cut_short")
        case _ if broker_cannot(error):
            return broker_away(error)
    _log.error("unforeseen", exc_info=error)
    return ApiError(500, "Something unforeseen happened here; the api's own log has it.", code="internal_error")


def _invalid(error: RequestValidationError) -> ApiError:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return ApiError(400, f"{where}: {first['msg']}.", code="invalid_value", param=where or None)


def _http(request: Request, error: HTTPException) -> ApiError:
    phrase = HTTPStatus(error.status_code).phrase
    path = request.url.path[:_QUOTED]
    match error.status_code:
        case 404:
            return ApiError(404, f"There is no {path} here: /docs lists what there is.", code="not_found")
        case 405:
            allowed = ", ".join(_methods(request))
            message = f"{request.method} is not for {path}: use {allowed}."
            return ApiError(405, message, code="method_not_allowed", headers={"Allow": allowed})
    code = phrase.lower().replace(" ", "_")
    return ApiError(error.status_code, str(error.detail), code=code, headers=dict(error.headers or {}))


def _methods(request: Request) -> list[str]:
    """All methods that the request's path takes."""
    matching = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in matching for method in route.methods})


def install(app: FastAPI) -> None:
    """Make every error of the app answer in the one shape."""

    async def known(request: Request, error: Exception) -> JSONResponse:
        return as_api_error(error).response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return _invalid(error).response()

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        return _http(request, error).response()

    expected = (ApiError, ClientDisconnect, BadField, Full, TooLarge, KeyReused, Expired, BrokenLog, DecodeError)
    for kind in (*expected, redis.exceptions.ResponseError, *BROKER_AWAY):
        app.add_exception_handler(kind, known)
    app.add_exception_handler(Exception, known)
