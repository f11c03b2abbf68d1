"""Webhooks: a job's end is told to the URL that its request names, by whichever api process is there.

What is owed is in the broker from before the job is accepted. A process claims an attempt for a while; if it dies, the
claim lapses and another process makes the next one. So a receiver hears of each job at least once, and knows by
`webhook-id` what it has heard before.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from api.allowed_hosts import AllowedHosts
from api.ending import end
from api.errors import ApiError, broker_cannot
from api.settings import WebhookSettings
from api.signatures import signed, signing_key
from api.views import job_view
from broker_schemas import keys, log
from broker_schemas.codec import DecodeError, pack, unpack
from broker_schemas.contract import Contract
from broker_schemas.job import BrokenLog, JobState
from producer.follow import Unknown

if TYPE_CHECKING:
    from api.service import Service

_log = logging.getLogger(__name__)


class Untold(Exception):
    """An attempt failed; the message says why."""


@dataclass(frozen=True, slots=True)
class Message:
    """What is told: the same bytes under the same id, however often."""

    id: str
    url: str
    body: bytes

    @classmethod
    def of(cls, state: JobState, contract: Contract | None) -> Message | None:
        """None where the job asked for nothing to be told. Raises BrokenLog, and Untold where it is not final."""
        if state.ended_at is None:
            raise Untold(f"the job is {state.status}")
        url = state.requested.extra.get("webhook")
        if url is None:
            return None
        content = {
            "type": f"job.{state.status.value}",
            "timestamp": datetime.fromtimestamp(state.ended_at / 1000, UTC).isoformat().replace("+00:00", "Z"),
            "data": job_view(state, contract) | {"queue_position": None},
        }
        # An Idempotency-Key may bring a job's id back once the job has expired: that one is another message.
        return cls(f"{state.id}-{state.requested_at}", url, json.dumps(content, ensure_ascii=False).encode())


class Webhooks:
    """Where webhooks may go, the keys that sign them, and the attempts of this process that are under way.

    Raises:
        ValueError: a host or a secret is none, or hosts are allowed and there is no secret.
    """

    def __init__(self, settings: WebhookSettings) -> None:
        self.settings = settings
        self.hosts = AllowedHosts(settings.hosts, field="webhook", instead="", timeout_s=settings.timeout_s)
        self.keys = [signing_key(secret) for secret in settings.secrets]
        self.attempts: set[asyncio.Task[None]] = set()
        if self.hosts and not self.keys:
            raise ValueError("webhooks are signed: where --webhook-hosts allows some, give --webhook-secret")

    async def check(self, text: str) -> None:
        """Raise ApiError 400 where the end of a job cannot be told to this URL."""
        if not self.hosts:
            message = "webhook cannot be served here: ask the operator to allow its host, or poll the job."
            raise ApiError(400, message, code="invalid_value", param="webhook")
        url = self.hosts.url(text)
        with suppress(OSError):  # a name without an address now may have one by then
            async with asyncio.timeout(self.settings.timeout_s):
                await self.hosts.addresses(url)

    async def send(self, message: Message) -> None:
        """One attempt; raises Untold."""
        import httpx

        headers = signed(self.keys, message.id, int(time.time()), message.body)
        headers |= {"Content-Type": "application/json", "User-Agent": "Songline"}
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                url = self.hosts.url(message.url)
                answer = await self.hosts.send("POST", url, headers=headers, content=message.body)
                await answer.aclose()
        except TimeoutError:
            raise Untold(f"it took over {self.settings.timeout_s:g} s") from None
        except ApiError as refused:  # the list is another one since, or the name's address is
            raise Untold(str(refused)) from None
        except (httpx.HTTPError, OSError) as error:
            raise Untold(type(error).__name__) from None
        if not answer.is_success:
            raise Untold(f"it answers {answer.status_code}")

    async def close(self) -> None:
        await end(*self.attempts)
        await self.hosts.close()


async def deliver_webhooks(service: Service) -> None:
    """Begin attempts at what is due, as many as this process may have under way."""
    hooks = service.webhooks
    room = hooks.settings.at_once - len(hooks.attempts)
    if room <= 0:
        return
    ttl_ms = int(hooks.settings.claim_s * 1000)
    claimed, *due = await service.run(log.claim_webhooks(sorted(service.contracts), ttl_ms=ttl_ms, most=room))
    for job, attempt in zip(due[::2], due[1::2], strict=True):
        task = asyncio.create_task(_attempt(service, job, claimed, attempt))
        hooks.attempts.add(task)
        task.add_done_callback(hooks.attempts.discard)


async def _attempt(service: Service, job: str, claimed: int, attempt: int) -> None:
    try:
        await _tell(service, job, claimed, attempt)
    except Exception as error:  # the claim lapses, and the next attempt is whoever's comes first
        _log.warning("the webhook of job %s: not this time", job, exc_info=None if broker_cannot(error) else error)


async def _tell(service: Service, job: str, claimed: int, attempt: int) -> None:
    message = None
    try:
        message = await _message(service, job)
        if message is not None:
            await service.webhooks.send(message)
    except Exception as why:
        if broker_cannot(why):
            raise
        if not isinstance(why, Untold):
            _log.error("the webhook of job %s", job, exc_info=why)
        await _put_off(service, job, claimed, attempt, message, why)
        return
    await service.run(log.end_webhook(job, claimed=claimed, outcome="" if message is None else "delivered"))
    if message is not None:
        service.metrics.webhooks.labels("delivered").inc()


async def _message(service: Service, job: str) -> Message | None:
    """What is to be told; None where the job asked for nothing. Raises Untold where there is nothing to tell yet."""
    kept = await service.client().hget(keys.WEBHOOK_MESSAGES, job)
    if kept is not None:
        return Message(**unpack(kept))
    try:
        state = await (await service.producer()).jobs.state(job)
        return Message.of(state, service.contracts.get(state.requested.model))
    except Unknown:
        raise Untold("there is no such job") from None
    except (BrokenLog, DecodeError) as error:
        raise Untold(f"its log cannot be read: {error}") from None


async def _put_off(
    service: Service, job: str, claimed: int, attempt: int, message: Message | None, why: Exception
) -> None:
    pauses_s = service.webhooks.settings.pauses_s
    if attempt > len(pauses_s):
        await service.run(log.end_webhook(job, claimed=claimed, outcome="given_up"))
        service.metrics.webhooks.labels("failed").inc()
        service.metrics.webhooks.labels("given_up").inc()
        _log.warning("the webhook of job %s is given up after %d attempts: %s", job, attempt, why)
        return
    pause_ms = int(pauses_s[attempt - 1] * 1000)
    kept = b"" if message is None else pack(asdict(message))
    await service.run(log.tell_again(job, claimed=claimed, pause_ms=pause_ms, message=kept))
    service.metrics.webhooks.labels("failed").inc()
