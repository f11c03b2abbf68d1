"""The app: routes, errors, and the service behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI

import api.about
import api.jobs
import api.page
import api.pipeline
import api.speech
import api.streaming
import api.voices
from api import errors
from api.chores import start_chores
from api.ending import end
from api.service import Service
from api.settings import ApiSettings
from broker_schemas.connection import Broker
from broker_schemas.contract import Contract

_ABOUT = """
Two-stage speech and music models behind jobs: submit one, follow its sound chunk by chunk, fetch the file.
The same model, input, parameters and seed give the same bytes.
"""


def create_app(broker: Broker, contracts: Mapping[str, Contract], settings: ApiSettings) -> FastAPI:
    """The api over a broker. Raises ValueError where the settings' API keys, hosts or secrets cannot be taken."""
    service = Service(broker, contracts, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        chores = start_chores(service)
        try:
            yield
        finally:
            service.stopping.set()
            await end(*chores)
            await service.close()

    app = FastAPI(title="Songline", version="0.5.0", description=_ABOUT, lifespan=lifespan)
    app.state.service = service
    errors.install(app)
    for module in (
        api.speech, api.voices, api.jobs, api.streaming, api.pipeline, api.about, api.page,
    ):  # fmt: skip
        app.include_router(module.router)
    return app
