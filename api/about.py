"""What this installation is and how it does: models, health, readiness, metrics."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from starlette.responses import Response

from api import queue
from api.auth import Owner
from api.encoding import FORMATS
from api.errors import BROKER_AWAY
from api.pipeline import archive, live_workers, webhooks
from api.service import Service, Serving
from broker_schemas import keys
from broker_schemas.contract import Contract

_PATIENCE_S = 3  # with a broker that does not answer: whoever asks here wants to know soon
_WAITING = ("owed", "retrying")  # of webhooks

router = APIRouter()


@router.get("/v1/models", tags=["models"], summary="List the models")
async def models(service: Serving, owner: Owner) -> dict[str, Any]:
    """OpenAI's list, with each model's sound and the request fields that mean something to it."""
    shown = [_model(service, name, contract) for name, contract in sorted(service.contracts.items())]
    return {"object": "list", "data": shown}


@router.get("/v1/models/{model}", tags=["models"], summary="Look at a model")
async def model(service: Serving, owner: Owner, model: str) -> dict[str, Any]:
    return _model(service, model, service.contract(model))


@router.get("/health", tags=["operation"], summary="Is the process alive?")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@router.get("/ready", tags=["operation"], summary="Can jobs be served now?")
async def ready(service: Serving) -> JSONResponse:
    """503 names what is missing: the broker, or a model's talker or acoustic worker."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            _, beats = await live_workers(service.client())
    except BROKER_AWAY as error:
        missing = [f"broker: {error or type(error).__name__}"]
        return JSONResponse({"status": "not ready", "broker": "away", "models": {}, "missing": missing}, 503)
    workers = [(beat.model, beat.role) for beat in beats]
    counts = {model: {role: workers.count((model, role)) for role in keys.ROLES} for model in sorted(service.contracts)}
    missing = [f"{model}: no {role} worker" for model, roles in counts.items() for role, n in roles.items() if not n]
    if service.stopping.is_set():
        missing.append("api: shutting down")
    status = "not ready" if missing else "ready"
    answer = {"status": status, "broker": "ok", "models": counts, "missing": missing}
    return JSONResponse(answer, 503 if missing else 200)


@router.get("/metrics", tags=["operation"], summary="Metrics for Prometheus", response_class=Response)
async def metrics(service: Serving) -> Response:
    """Counters of this process; queue depth, live jobs and what the workers do are the installation's."""
    gauges = service.metrics
    try:
        async with asyncio.timeout(_PATIENCE_S):
            gauges.live_jobs.set(await service.client().zcard(keys.LIVE))
            now_ms, gauges.workers.beats = await live_workers(service.client())
            unarchived = await archive(service.client(), now_ms)
            gauges.unarchived_jobs.set(unarchived["waiting"])
            gauges.unarchived_oldest.set(unarchived["oldest_s"])
            told = await webhooks(service.client())
            for state in _WAITING:
                gauges.webhooks_waiting.labels(state).set(told[state])
            for name in service.contracts:
                gauges.queue_depth.labels(name).set(await queue.depth(service.client(), name))
    except BROKER_AWAY:  # unknown now: better no figure than an old one
        gauges.live_jobs.set(float("nan"))
        gauges.unarchived_jobs.set(float("nan"))
        gauges.unarchived_oldest.set(float("nan"))
        gauges.workers.beats = []
        for state in _WAITING:
            gauges.webhooks_waiting.labels(state).set(float("nan"))
        for name in service.contracts:
            gauges.queue_depth.labels(name).set(float("nan"))
    return Response(gauges.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _model(service: Service, name: str, contract: Contract) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "songline",
        "sample_rate": contract.sample_rate,
        "channels": contract.channels,
        "frame_rate": contract.frame_rate,
        "voices": sorted(contract.voices),
        "clones": contract.clones,
        "fields": sorted({"model", "input", "seed"} | contract.fields),
        "response_formats": list(FORMATS),
    }
