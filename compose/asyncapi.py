"""docs/asyncapi.yaml: the streams in Redis and the events in them, as AsyncAPI has it.

`python -m compose.asyncapi` writes it from the events' classes and the keys' names.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

import yaml

from broker_schemas import keys
from broker_schemas.codec import TENSOR_EXT, Tensor
from broker_schemas.events import FINAL_TYPES, PAYLOADS, VERSION, PassageEnd, Payload

Schema = dict[str, Any]

_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
}
_PARAMETERS = {
    "job": "The job's id in braces, a Redis Cluster hash tag that gives all keys of a job one slot.",
    "model": "The name under which a model is served.",
    "owner": "Whose the jobs are: the owner of the API key.",
    "role": "Whose workers are meant.",
    "tombstones": "The hash tag that puts the bells into the slot of the tombstones.",
    "id": "The job's id.",
}
_ENUMS = {"role": list(keys.ROLES), "tombstones": [f"{{{keys.TOMBSTONES}}}"]}


def document() -> Schema:
    """The whole of it, as YAML takes it."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Songline's events and streams",
            "version": VERSION,
            "description": (
                "What api and workers say to one another over Redis Streams, and what listeners may read. The version "
                "is that of the events: fields may come in a minor one, and are kept by those who do not know them; a "
                "newer major one is refused. This file is made by `make docs`."
            ),
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/vnd.msgpack",
        "servers": {
            "redis": {"host": "localhost:6379", "protocol": "redis", "description": "The broker: --broker"},
            "api": {"host": "localhost:8000", "protocol": "http", "description": "Any api process: --host and --port"},
        },
        "channels": _channels(),
        "operations": _operations(),
        "components": {"messages": _messages(), "schemas": _schemas()},
    }


def page() -> str:
    """docs/asyncapi.yaml."""
    return yaml.dump(document(), Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120)


class _Plain(yaml.SafeDumper):
    """Writes equal values out instead of pointing from one to the other."""

    def ignore_aliases(self, _: Any) -> bool:
        return True


# --- channels -------------------------------------------------------------------------------------------------------


def _channels() -> Schema:
    return {
        "log": _channel(
            keys.log("{job}"),
            _names(),
            "A job's log: its only truth. An entry's id is the event's number; field `e` has it.",
        ),
        "audio": _channel(keys.audio("{job}"), {"chunk": "chunk"}, "A job's sound, an entry a window; id: index + 1."),
        "spans": _channel(
            keys.spans("{job}"), {"conditioning": "conditioning"}, "What the acoustic stage needs, until it has it."
        ),
        "requests": _channel(
            keys.requests("{model}", "{owner}"), {"pointer": "pointer"}, "Jobs that wait for a talker, by owner."
        ),
        "ready": _channel(keys.ready("{model}"), {"pointer": "pointer"}, "Jobs with something to make sound of."),
        "tombstones": _channel(
            keys.TOMBSTONES,
            {"pointer": "pointer"},
            f"Jobs that ended early, the newest {keys.TOMBSTONES_KEPT}: a hint.",
        ),
        "bell": _channel(
            keys.bell("{model}", "{role}"),
            {"ring": "ring"},
            "Jobs to look at. A hint; losing it costs a poll interval.",
        ),
        "events": _channel(
            "/v1/jobs/{id}/events",
            _names("-shown"),
            "A job's log as server-sent events, where `Accept: text/event-stream` asks for them: `id` is the event's "
            "number, which `Last-Event-ID` takes up; `event` its type.",
            server="api",
        ),
    }


def _names(suffix: str = "") -> dict[str, str]:
    """Each event's message, by its name in a channel; neither may have a dot."""
    return {_name(kind): f"{_name(kind)}{suffix}" for kind in PAYLOADS}


def _name(kind: str) -> str:
    return kind.replace(".", "-")


def _channel(address: str, messages: dict[str, str], description: str, *, server: str = "redis") -> Schema:
    """Braces that mean a hash tag become part of the parameter: an address knows no others."""
    address = address.replace("{{job}}", "{job}").replace(f"{{{keys.TOMBSTONES}}}", "{tombstones}")
    named = [name for name in _PARAMETERS if f"{{{name}}}" in address]
    channel: Schema = {"address": address, "description": description, "servers": [_ref("servers", server)]}
    channel["messages"] = {name: _ref("components", "messages", message) for name, message in messages.items()}
    if named:
        channel["parameters"] = {name: _parameter(name) for name in named}
    return channel


def _parameter(name: str) -> Schema:
    enum = {"enum": _ENUMS[name]} if name in _ENUMS else {}
    return {"description": _PARAMETERS[name], **enum}


def _operations() -> Schema:
    told = {
        "log": "api, workers and sweepers write events, by append-if alone",
        "audio": "an acoustic worker writes a window's sound, with its event",
        "spans": "a talker writes conditioning, with its event",
        "requests": "an api points to a job that it has accepted",
        "ready": "a talker points to a job that has its first span",
        "tombstones": "whoever ends a job early tells all workers",
        "bell": "whoever has something for a role rings",
        "events": "an api tells listeners",
    }
    return {name: {"action": "send", "channel": _ref("channels", name), "summary": text} for name, text in told.items()}


# --- messages -------------------------------------------------------------------------------------------------------


def _messages() -> Schema:
    messages: Schema = {}
    for kind, payload in PAYLOADS.items():
        summary = {"name": kind, "summary": _told(payload), "tags": [{"name": _tag(kind)}]}
        messages[_name(kind)] = summary | {"payload": _event(kind, "Envelope")}
        messages[f"{_name(kind)}-shown"] = summary | {
            "contentType": "application/json",
            "payload": _event(kind, "ShownEnvelope"),
        }
    for name, (entry, text) in _ENTRIES.items():
        messages[name] = {"name": name, "summary": text, "contentType": "application/octet-stream", "payload": entry}
    return messages


def _event(kind: str, envelope: str) -> Schema:
    own = {"type": {"const": kind}, "data": _ref("components", "schemas", _name(kind))}
    return {"allOf": [_ref("components", "schemas", envelope), {"properties": own}]}


def _tag(kind: str) -> str:
    return "final" if kind in FINAL_TYPES else "event"


def _entry(**fields_: str) -> Schema:
    """An entry of a Redis stream: its fields are byte strings."""
    named = {name: {"type": "string", "description": text} for name, text in fields_.items()}
    return {"type": "object", "properties": named, "required": list(named)}


_ENTRIES = {
    "chunk": (
        _entry(
            pcm="interleaved 16-bit little-endian samples", start="of its first sample, per channel, in decimal",
            sha256="of pcm, in hex",
        ),
        "One window's sound",
    ),
    "conditioning": (_entry(x="at most 4 MiB of MessagePack"), "A part of the conditioning of a span's frames"),
    "pointer": (_entry(job="the job's id"), "A job to look at"),
    "ring": (
        _entry(job="the job's id") | {"properties": {"job": {"type": "string"}, "why": {"const": "lapsed"}}},
        "A job to look at; `why` where it has lost its owner",
    ),
}  # fmt: skip


# --- schemas --------------------------------------------------------------------------------------------------------


def _schemas() -> Schema:
    envelope = {
        "v": {"type": "string", "description": "major.minor", "examples": [VERSION]},
        "type": {"type": "string"},
        "job": {"type": "string", "description": "the job's id"},
        "seq": {"type": "integer", "minimum": 1, "description": "its number in the log, from 1 on without a gap"},
        "at": {"type": "integer", "description": "when it was written, Unix milliseconds by the broker's clock"},
        "by": {"type": "string", "description": "who wrote it"},
        "data": {"type": "object"},
    }
    shown = envelope | {
        "at": {"type": "number", "description": "when it was written, Unix seconds by the broker's clock"}
    }
    return {
        "Envelope": _object(envelope, list(envelope)),
        "ShownEnvelope": _object(shown, list(shown)),
        "Tensor": _object(
            {
                "dtype": {"type": "string"},
                "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                "values": {"type": "array", "description": "nested as `shape` says; not of bfloat16"},
            },
            ["dtype", "shape"],
            f"An array. In Redis it is MessagePack's extension type {TENSOR_EXT}: an array of dtype, shape, and the "
            "elements in C order as little-endian bytes.",
        ),
        **{_name(kind): _data(payload) for kind, payload in PAYLOADS.items()},
    }


def _data(payload: type[Payload]) -> Schema:
    """The `data` of an event. What it does not know may be there too."""
    hints = typing.get_type_hints(payload)
    own = [each for each in fields(payload) if each.name != "extra"]
    required = [each.name for each in own if each.default is MISSING and each.default_factory is MISSING]
    return _object({each.name: _schema(hints[each.name]) for each in own}, required, _told(payload))


def _schema(hint: Any) -> Schema:
    """Of a field's type; raises TypeError for one that no event has yet."""
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if hint is Tensor:
        return _ref("components", "schemas", "Tensor")
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is dict:
        return {"type": "object"}
    if origin is types.UnionType:
        return {"oneOf": [{"type": "null"} if arg is types.NoneType else _schema(arg) for arg in args]}
    if origin is tuple and args == (PassageEnd, ...):
        kinds = typing.get_type_hints(PassageEnd)
        each = {
            "type": "array",
            "description": ", ".join(kinds),
            "items": [_schema(kind) for kind in kinds.values()],
            "minItems": len(kinds),
            "maxItems": len(kinds),
        }
        return {"type": "array", "items": each}
    raise TypeError(f"no schema for {hint}")


def _object(properties: Schema, required: Sequence[str], description: str = "") -> Schema:
    told = {"description": description} if description else {}
    return {"type": "object", **told, "properties": properties, "required": list(required)}


def _told(payload: type[Payload]) -> str:
    """Its docstring, on one line."""
    return " ".join((inspect.getdoc(payload) or "").split())


def _ref(*place: str) -> Schema:
    return {"$ref": "#/" + "/".join(place)}


if __name__ == "__main__":
    print(page(), end="")
