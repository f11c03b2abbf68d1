"""The api's one piece of state: the broker, the contracts, and what this process keeps beside them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import HTTPConnection

from api.audio_files import AudioFiles
from api.auth import Keyring
from api.errors import ApiError, expired_job, unknown_job, unknown_model
from api.metrics import Metrics
from api.reference_hosts import ReferenceHosts
from api.settings import ApiSettings
from api.webhooks import Webhooks
from broker_schemas.connection import Broker
from broker_schemas.contract import Contract
from broker_schemas.job import JobState
from broker_schemas.log import AsyncScripts, Call, Reply
from producer.follow import Unknown
from producer.submit import JobIds, Producer, shared_secret

_JOB_ID = re.compile(r"job_[a-z2-7]{32}")


class Service:
    """Lives as long as the app. Needs no broker to start: it connects when first asked."""

    def __init__(self, broker: Broker, contracts: Mapping[str, Contract], settings: ApiSettings) -> None:
        self.broker = broker
        self.contracts = dict(contracts)
        self.settings = settings
        self.keyring = Keyring(settings.api_keys)
        self.metrics = Metrics()
        self.files = AudioFiles(settings.files_bytes)
        self.reference_hosts = ReferenceHosts(
            settings.reference_hosts,
            max_bytes=settings.voices.recording.max_bytes,
            timeout_s=settings.reference_timeout_s,
        )
        self.webhooks = Webhooks(settings.webhooks)
        self.stopping = asyncio.Event()  # set when the process is about to leave: streams end, jobs go on
        self.started_at = int(time.time())
        self.accepted: set[str] = set()  # live jobs that this process accepted
        self._client: Any = None
        self._producer: Producer | None = None
        self._scripts: AsyncScripts | None = None

    def client(self) -> Any:
        """The asyncio client of the broker."""
        if self._client is None:
            self._client = self.broker.async_client()
        return self._client

    async def run(self, call: Call) -> Reply:
        """The reply to a script."""
        if self._scripts is None:
            self._scripts = AsyncScripts(self.client())
        return await self._scripts(call)

    async def producer(self) -> Producer:
        """This process's producer; raises the broker's ConnectionError while there is none."""
        if self._producer is None:
            client = self.client()
            ids = JobIds(await shared_secret(client))
            self._producer = Producer(client, ids=ids, limits=self.settings.limits, name=self.settings.name)
        return self._producer

    async def close(self) -> None:
        self.files.close()
        await self.reference_hosts.close()
        await self.webhooks.close()
        if self._client is not None:
            await self._client.aclose()

    @property
    def max_body_bytes(self) -> int:
        """Of a request; a recording in base64 takes four bytes for three."""
        brings = any(contract.clones for contract in self.contracts.values())
        recording = self.settings.voices.recording.max_bytes * 4 // 3 if brings else 0
        return self.settings.max_body_bytes + recording

    def contract(self, model: str) -> Contract:
        """The contract of a model that requests may name; raises ApiError 404."""
        if model not in self.contracts:
            raise unknown_model(model, sorted(self.contracts))
        return self.contracts[model]

    def contract_of(self, state: JobState) -> Contract:
        """The contract of a job's model; raises ApiError 503 where this api does not serve it (any more)."""
        model = state.requested.model
        if model not in self.contracts:
            message = f"The model of job {state.id}, {model!r}, is not served by this api: ask one that does."
            raise ApiError(503, message, code="model_not_served")
        return self.contracts[model]

    async def owned(self, job: str, owner: str) -> Producer:
        """The producer, once it is clear that the job is or was the owner's; raises ApiError 404."""
        producer = await self.producer()
        if not _JOB_ID.fullmatch(job) or not producer.ids.issued_to(job, owner):
            raise unknown_job(job)
        return producer

    async def state(self, job: str, owner: str) -> JobState:
        """An owner's job; raises ApiError 404 for what never was theirs, 410 for what is gone."""
        producer = await self.owned(job, owner)
        try:
            return await producer.jobs.state(job)
        except Unknown:
            raise expired_job(job) from None


async def _service(connection: HTTPConnection) -> Service:
    return connection.app.state.service


Serving = Annotated[Service, Depends(_service)]
