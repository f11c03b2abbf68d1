"""From a request's body to a job: what OpenAI's clients, the api's own fields and the model's contract ask for."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from api.encoding import FORMATS
from api.errors import ApiError, as_api_error, quoted
from api.references import Reference, find_reference, keep_reference
from api.service import Service
from api.trace import traceparent
from broker_schemas.codec import digest
from broker_schemas.contract import BadField, Contract, Order
from broker_schemas.events import JobRequested
from producer.submit import Submitted

_COMMON = frozenset({"model", "input", "seed"})
_OWN = frozenset({"response_format", "stream", "stream_format", "deadline_s", "user", "metadata", "webhook"})
# Fields that OpenAI's clients may send to any model: what they may say is for the contract to judge.
_OPENAI = frozenset({"voice", "instructions", "speed"})
_STREAM_FORMATS = ("sse", "audio")
_DRAWN_SEEDS = 1 << 53  # seeds are drawn below what JavaScript's numbers hold exactly
_WEBHOOK_LENGTH = 2048
_DRAINED = 32 << 20  # bytes that are read of a body that is too large, as a client hears nothing while it sends
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, as far as the api itself reads it.

    given: its fields that are not null. body: the digest of what was sent. streamed: None, "sse" or "audio".
    """

    given: dict[str, Any]
    body: str
    model: str  # the name it is served under
    contract: Contract
    seed: int
    deadline_s: float
    response_format: str | None
    streamed: str | None
    user: str | None
    metadata: dict[str, str] | None
    webhook: str | None

    def requested(self, order: Order, voice: str | None, owner: str, trace: str | None) -> JobRequested:
        """The job that it becomes; `voice` is the uploaded one that is cloned."""
        own = {
            "response_format": self.response_format,
            "user": self.user,
            "metadata": self.metadata,
            "voice": voice or None,
            "webhook": self.webhook,
        }
        return JobRequested(
            model=self.model,
            input=order.input,
            params=order.params,
            seed=self.seed,
            owner=owner,
            deadline=int((time.time() + self.deadline_s) * 1000),
            traceparent=trace,
            sample_rate=self.contract.sample_rate,
            channels=self.contract.channels,
            extra={name: value for name, value in own.items() if value is not None},
        )


async def submit(service: Service, request: Request, owner: str, *, route: str) -> tuple[Ask, Submitted]:
    """Read a request and make it a job; raises ApiError, BadField, Full, TooLarge, KeyReused.

    Where its Idempotency-Key has made one already, that is the answer: nothing that it names is looked for again.
    """
    try:
        ask = _ask(service, await _body(request, service.max_body_bytes))
        key = _idempotency_key(request)
        submitted = await _submitted_before(service, owner, ask, key) if key else None
        if submitted is None:
            if ask.webhook is not None:
                await service.webhooks.check(ask.webhook)
            order, reference = await _order(service, owner, ask)
            producer = await service.producer()
            producer.check_size(order.reserve_bytes)
            if reference is not None:
                await keep_reference(service, reference, ask.deadline_s)
            submitted = await producer.submit(
                ask.requested(
                    order,
                    reference.voice if reference else None,
                    owner,
                    traceparent(request.headers.getlist("traceparent")),
                ),
                reserve_bytes=order.reserve_bytes,
                body=ask.body,
                idempotency_key=key,
            )
    except Exception as error:
        _count_refusal(service, as_api_error(error))
        raise
    if submitted.created:
        service.metrics.submissions.labels(ask.model, route).inc()
        service.accepted.add(submitted.id)
    return ask, submitted


async def _submitted_before(service: Service, owner: str, ask: Ask, key: str) -> Submitted | None:
    return await (await service.producer()).submitted_before(owner, body=ask.body, idempotency_key=key)


def _count_refusal(service: Service, error: ApiError) -> None:
    named = _COMMON | _OWN | _OPENAI | {"Idempotency-Key"}
    named = named.union(*(contract.fields | contract.tolerated for contract in service.contracts.values()))
    field = (error.param if error.param in named else "other") if error.param else "none"
    service.metrics.refusals.labels(field, error.code).inc()


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not _IDEMPOTENCY_KEY.fullmatch(key):
        raise BadField("Idempotency-Key", "Idempotency-Key must be 1 to 255 visible ASCII characters.")
    return key


async def _body(request: Request, limit: int) -> dict[str, Any]:
    raw, size = bytearray(), 0
    async for piece in request.stream():
        size += len(piece)
        if size <= limit:
            raw += piece
        elif size > limit + _DRAINED:
            break
    if size > limit:
        raise ApiError(413, f"The body is over {limit} bytes: shorten it.", code="body_too_large")
    return parse(bytes(raw))


def parse(raw: bytes) -> dict[str, Any]:
    """A body's JSON object; raises ApiError 400 for what is none."""
    try:
        body = json.loads(raw, parse_constant=_no_constant)
        json.dumps(body, ensure_ascii=False).encode()  # a lone surrogate is no text
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The body is not JSON that can be taken: {error}.", code="invalid_json") from None
    if not isinstance(body, dict):
        message = 'The body must be a JSON object, such as {"model": "…", "input": "…"}.'
        raise ApiError(400, message, code="invalid_json")
    return body


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _ask(service: Service, body: dict[str, Any]) -> Ask:
    given = {name: value for name, value in body.items() if value is not None}
    if (voice := _voice_id(given.get("voice"))) is not None:
        given["voice"] = voice
    model = _required_text(given, "model")
    contract = service.contract(model)
    _required_text(given, "input")
    return Ask(
        given=given,
        model=model,
        contract=contract,
        seed=_seed(given),
        deadline_s=_deadline(given, service.settings.deadline_s, service.settings.max_deadline_s),
        response_format=_response_format(given),
        streamed=_streamed(given),
        user=_text(given, "user", at_most=512),
        metadata=_metadata(given),
        webhook=_text(given, "webhook", at_most=_WEBHOOK_LENGTH),
        body=_digest(body),
    )


async def _order(service: Service, owner: str, ask: Ask) -> tuple[Order, Reference | None]:
    """What the model makes of a request, and whose voice it clones; raises ApiError, BadField."""
    given, contract = ask.given, ask.contract
    reference = await find_reference(service, owner, given) if contract.clones else None
    asked = {name: value for name, value in given.items() if name not in _OWN} | {"seed": ask.seed}
    # A tokenizer may take its time. The contract comes first: where it refuses a field it knows what to do instead.
    order = await asyncio.to_thread(contract.accept, reference.stated(asked) if reference else asked)
    known = _COMMON | _OWN | _OPENAI | contract.fields
    for name in given:
        if name not in known | contract.tolerated:
            raise BadField(name, f"{quoted(name)} means nothing to {ask.model}: leave it out. Known: {_listed(known)}.")
    return (reference.named(order) if reference else order), reference


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _digest(body: dict[str, Any]) -> str:
    try:
        return digest(body)
    except (TypeError, OverflowError):
        message = "The body has a number of more than 64 bits: send a smaller one."
        raise ApiError(400, message, code="invalid_json") from None


def _required_text(given: Mapping[str, Any], name: str) -> str:
    text = _text(given, name)
    if text is None:
        raise BadField(name, f"{name} is missing: give it as a string.")
    return text


def _text(given: Mapping[str, Any], name: str, *, at_most: int | None = None) -> str | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadField(name, f"{name} must be a string.")
    if at_most is not None and len(value) > at_most:
        raise BadField(name, f"{name} is {len(value)} characters long: at most {at_most} can be taken.")
    return value


def _voice_id(voice: Any) -> str | None:
    """The name in OpenAI's other way to write a voice: {"id": "…"}."""
    if isinstance(voice, dict) and voice.keys() == {"id"} and isinstance(voice["id"], str):
        return voice["id"]
    return None


def _seed(given: Mapping[str, Any]) -> int:
    seed = given.get("seed")
    if seed is None:
        return secrets.randbelow(_DRAWN_SEEDS)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise BadField("seed", "seed must be a whole number from 0 to 2^63 - 1; leave it out to have one drawn.")
    return seed


def _deadline(given: Mapping[str, Any], default: float, longest: float) -> float:
    seconds = given.get("deadline_s", default)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= longest:
        raise BadField("deadline_s", f"deadline_s must be a number of seconds, over 0 and at most {longest:g}.")
    return float(seconds)


def _response_format(given: Mapping[str, Any]) -> str | None:
    name = given.get("response_format")
    if name is not None and (not isinstance(name, str) or name not in FORMATS):
        raise BadField(
            "response_format", f"response_format {quoted(name)} cannot be made: use one of {', '.join(FORMATS)}."
        )
    return name


def _streamed(given: Mapping[str, Any]) -> str | None:
    stream, stream_format = given.get("stream", False), given.get("stream_format")
    if not isinstance(stream, bool):
        raise BadField("stream", "stream must be true or false.")
    if stream_format is not None and stream_format not in _STREAM_FORMATS:
        raise BadField("stream_format", "stream_format must be sse or audio.")
    return stream_format or ("sse" if stream else None)


def _metadata(given: Mapping[str, Any]) -> dict[str, str] | None:
    metadata = given.get("metadata")
    if metadata is None:
        return None
    fits = isinstance(metadata, dict) and len(metadata) <= 16
    if not fits or not all(isinstance(v, str) and len(v) <= 512 and len(k) <= 64 for k, v in metadata.items()):
        raise BadField("metadata", "metadata must be up to 16 pairs of strings: names up to 64, values up to 512 long.")
    return metadata
