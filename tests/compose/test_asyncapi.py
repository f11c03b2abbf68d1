"""docs/asyncapi.yaml: made from the events, valid as AsyncAPI, and true of what is written and told."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml

from api.views import event_view
from broker_schemas import events as ev
from broker_schemas import keys
from broker_schemas.codec import Tensor, unpack
from broker_schemas.events import PAYLOADS, Event, PassageEnd, decode
from compose.asyncapi import _schema, page
from tests.api.conftest import serving

FILE = Path(__file__).parents[2] / "docs" / "asyncapi.yaml"
DOCUMENT = yaml.safe_load(FILE.read_text())

_CODES = Tensor.of(np.zeros((3, 8), np.int16))
_SPAN = {"index": 0, "start_frame": 0, "frames": 2, "codes": _CODES, "conditioning": "0" * 64}
SAMPLES = {
    payload.type: payload
    for payload in (
        ev.JobRequested(
            model="m", input="la", params={"top_p": 1.0}, seed=1, owner="o", deadline=9, sample_rate=32_000
        ),
        ev.JobAdmitted(role="talker", worker="t", attempt=1, rows=2, profile="p", token="a"),
        ev.JobResumed(role="talker", worker="t", attempt=2, token="b", from_frame=7),
        ev.ReferenceEncoded(recording="ab", speaker=Tensor.of(np.zeros(4, np.float32)), codes=None),
        ev.CodesLogged(start_draw=0, codes=_CODES),
        ev.SpanWindow(**_SPAN),
        ev.SpanTerminal(**_SPAN, reason="stop", ends=(PassageEnd(2, "stop", False),)),
        ev.AudioChunk(index=0, samples=7, start_sample=0, sha256="ab"),
        ev.RowsFreed(rows=2, step=9, why="cancelled", token="a"),
        ev.JobCancelled(by_whom="client"),
        ev.JobFailed(code="c", message="m", retryable=True),
        ev.JobCompleted(samples=7, frames=2, reason="stop"),
    )
}


def check(message: str, told: dict[str, Any]) -> None:
    """Raise ValidationError where what is told is not what the document says of the message."""
    whole = {**DOCUMENT, "allOf": [{"$ref": f"#/components/messages/{message}/payload"}]}
    jsonschema.Draft7Validator(whole).validate(told)


def plain(value: Any) -> Any:
    """As JSON has it; of tensors dtype and shape."""
    match value:
        case Tensor():
            return {"dtype": value.dtype, "shape": list(value.shape)}
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    return value


def named(kind: str, suffix: str = "") -> str:
    [message] = [
        name for name, message in DOCUMENT["components"]["messages"].items()
        if message["name"] == kind and name.endswith("-shown") == bool(suffix)
    ]  # fmt: skip
    return message


def test_it_is_made_from_the_events():
    assert FILE.read_text() == page(), "run `make docs`"


def test_it_is_asyncapi():
    models = pytest.importorskip("asyncapi3.models.asyncapi")
    models.AsyncAPI3.model_validate(DOCUMENT)


def test_every_reference_leads_somewhere():
    referred = re.findall(r"\$ref: '#/([^']+)'", FILE.read_text())
    assert referred
    for place in set(referred):
        found = DOCUMENT
        for step in place.split("/"):
            found = found[step]


def test_every_operation_and_channel_has_its_own():
    operations, channels = DOCUMENT["operations"], DOCUMENT["channels"]
    assert [operation["channel"]["$ref"] for operation in operations.values()] == [f"#/channels/{n}" for n in channels]
    for channel in channels.values():
        assert set(channel.get("parameters", {})) == set(re.findall(r"{(\w+)}", channel["address"]))


def test_addresses_are_the_brokers_keys():
    at = {name: channel["address"] for name, channel in DOCUMENT["channels"].items()}
    assert at["log"].replace("{job}", "{j}") == keys.log("j")
    assert at["audio"].replace("{job}", "{j}") == keys.audio("j")
    assert at["spans"].replace("{job}", "{j}") == keys.spans("j")
    assert at["requests"].format(model="m", owner="o") == keys.requests("m", "o")
    assert at["ready"].format(model="m") == keys.ready("m")
    assert at["tombstones"] == keys.TOMBSTONES
    [tag] = DOCUMENT["channels"]["bell"]["parameters"]["tombstones"]["enum"]
    assert at["bell"].format(tombstones=tag, model="m", role="talker") == keys.bell("m", "talker")


def test_a_log_may_have_every_event():
    assert SAMPLES.keys() == PAYLOADS.keys()
    for channel in ("log", "events"):
        messages = [each["$ref"].rsplit("/", 1)[1] for each in DOCUMENT["channels"][channel]["messages"].values()]
        assert [DOCUMENT["components"]["messages"][message]["name"] for message in messages] == list(PAYLOADS)


@pytest.mark.parametrize("kind", PAYLOADS)
def test_every_event_is_what_is_said_of_it(kind):
    payload = SAMPLES[kind]
    event = Event(type=kind, job="j", seq=1, at=1000, by="t", data=payload.data(), payload=payload)
    shown = event_view(event)
    logged = {"v": event.v, "type": kind, "job": "j", "seq": 1, "at": 1000, "by": "t", "data": plain(payload.data())}
    for message, told in ((named(kind), logged), (named(kind, "-shown"), shown)):
        check(message, told)
        check(message, {**told, "data": {**told["data"], "of_a_newer_version": 1}})
        for broken in (
            {**told, "type": "other"},
            {name: value for name, value in told.items() if name != "seq"},
            {**told, "data": {}},
        ):
            with pytest.raises(jsonschema.ValidationError):
                check(message, broken)
    required = {each.name for each in fields(payload)} - set(_with_defaults(type(payload)))
    schema = DOCUMENT["components"]["schemas"][named(kind)]
    assert set(schema["required"]) == required and "extra" not in schema["properties"]


def _with_defaults(payload: type) -> list[str]:
    """Fields that may be left out when one is made."""
    named_, left_out = {each.name: getattr(SAMPLES[payload.type], each.name) for each in fields(payload)}, []
    for name in named_:
        try:
            payload(**{other: value for other, value in named_.items() if other != name})
        except TypeError:
            continue
        left_out.append(name)
    return left_out


async def test_what_is_in_redis_and_what_the_api_tells(real_broker):
    async with serving(real_broker) as api:
        job = await api.played(2)
        shown = (await api.http.get(job["links"]["events"])).json()["data"]
    client = real_broker.client()
    entries = [entry[b"e"] for _, entry in client.xrange(keys.log(job["id"]))]
    for raw, told in zip(entries, shown, strict=True):
        kind = decode(raw).type
        check(named(kind), plain(unpack(raw)))
        check(named(kind, "-shown"), told)
    for _, entry in client.xrange(keys.audio(job["id"])):
        schema = DOCUMENT["components"]["messages"]["chunk"]["payload"]
        assert {name.decode() for name in entry} == set(schema["properties"])


def test_a_type_that_no_event_had_is_not_guessed():
    with pytest.raises(TypeError, match="no schema"):
        _schema(set[str])
