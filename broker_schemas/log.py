"""Calls of the scripts: what to send, and what the reply means. No connection is held here.

Each function returns a `Call`; `Scripts` runs one on a client, and `AsyncScripts` on an asyncio client, so that the
api (asyncio) and the workers (threads) share every name and argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import NoScriptError

from broker_schemas import keys
from broker_schemas.codec import digest
from broker_schemas.events import (
    FINAL_TYPES,
    AudioChunk,
    CodesLogged,
    JobRequested,
    Payload,
    SpanTerminal,
    SpanWindow,
    encode_open,
)  # fmt: skip

_SOURCES = {
    name: (Path(__file__).parent / f"{name}.lua").read_text()
    for name in ("append_if", "lease", "pointer", "reserve", "sent_recording", "artefacts", "webhooks", "archive")
}


@dataclass(frozen=True, slots=True)
class Call:
    script: str
    keys: list[str]
    args: list[Any]


Commands = Callable[[Any], None]  # queues commands in the pipeline that it is given
Reply = list[Any]  # what a script says: texts and numbers


class Scripts:
    """Runs calls on a synchronous client."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._loaded = False
        self._scripts = {name: client.register_script(source) for name, source in _SOURCES.items()}

    def __call__(self, call: Call) -> Reply:
        return _texts(self._scripts[call.script](keys=call.keys, args=call.args))

    def many(self, calls: Sequence[Call], then: Commands | None = None) -> list[Reply | Exception]:
        """Run calls in their order, in one exchange with the broker, which syncs its disk once for all of them.

        Args:
            then: commands that come after them.

        Returns:
            For each call its reply, or the error that it met; those after it were run nevertheless.

        Raises:
            RedisError: the broker is away, or one of the other commands failed. All may be sent again.
        """
        if not calls:
            return []
        if not self._loaded:
            self._load()
        replies = self._exchange(calls, then)
        if _forgotten(replies):
            self._load()
            replies = self._exchange(calls, then)
        return _of_calls(replies, len(calls))

    def all(self, calls: Sequence[Call], then: Commands | None = None) -> list[Reply]:
        """As `many`; raises the first error met, after all were run."""
        return _without_errors(self.many(calls, then))

    def _load(self) -> None:
        for script in self._scripts.values():
            self._client.script_load(script.script)
        self._loaded = True

    def _exchange(self, calls: Sequence[Call], then: Commands | None) -> Reply:
        pipeline = self._client.pipeline(transaction=False)
        _queue(pipeline, self._scripts, calls, then)
        return pipeline.execute(raise_on_error=False)


class AsyncScripts:
    """Runs calls on an asyncio client."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._loaded = False
        self._scripts = {name: client.register_script(source) for name, source in _SOURCES.items()}

    async def __call__(self, call: Call) -> Reply:
        return _texts(await self._scripts[call.script](keys=call.keys, args=call.args))

    async def all(self, calls: Sequence[Call], then: Commands | None = None) -> list[Reply]:
        """As `Scripts.all`."""
        if not self._loaded:
            await self._load()
        replies = await self._exchange(calls, then)
        if _forgotten(replies):
            await self._load()
            replies = await self._exchange(calls, then)
        return _without_errors(_of_calls(replies, len(calls)))

    async def _load(self) -> None:
        for script in self._scripts.values():
            await self._client.script_load(script.script)
        self._loaded = True

    async def _exchange(self, calls: Sequence[Call], then: Commands | None) -> Reply:
        async with self._client.pipeline(transaction=False) as pipeline:
            _queue(pipeline, self._scripts, calls, then)
            return await pipeline.execute(raise_on_error=False)


def _queue(pipeline: Any, scripts: dict[str, Any], calls: Sequence[Call], then: Commands | None) -> None:
    for call in calls:
        pipeline.evalsha(scripts[call.script].sha, len(call.keys), *call.keys, *call.args)
    if then is not None:
        then(pipeline)


def _forgotten(replies: Reply) -> bool:
    """Whether the broker does not know a script: it was restarted. It may know others: all calls are sent again."""
    return any(isinstance(reply, NoScriptError) for reply in replies)


def _of_calls(replies: Reply, calls: int) -> list[Reply | Exception]:
    _without_errors(replies[calls:])
    return [reply if isinstance(reply, Exception) else _texts(reply) for reply in replies[:calls]]


def _without_errors(replies: Reply) -> Reply:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _texts(reply: Any) -> Reply:
    items = reply if isinstance(reply, list) else [reply]
    return [item.decode() if isinstance(item, bytes) else item for item in items]


# --- append-if ------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """append-if wrote nothing. `status` as in append_if.lua: gone | lost | conflict | final | gap."""

    def __init__(self, status: str, detail: str, event: str, job: str) -> None:
        super().__init__(f"{event} of job {job} was refused: {status}{f' ({detail})' if detail else ''}")
        self.status = status
        self.detail = detail


def append(
    payload: Payload,
    *,
    job: str,
    by: str,
    token: str = "",
    role: str = "",
    ttl_ms: int = 0,
    conditioning: Sequence[tuple[str, bytes]] = (),
    pcm: bytes = b"",
    carry: bytes = b"",
    trim: str = "",
    after: int = 0,
    same_as: str = "",
) -> Call:
    """The append-if of one event with its companions.

    Args:
        token, role: the writer's lease; `role` is empty for events that need none.
        ttl_ms: how long the job's keys live on, for final events.
        conditioning: (entry id, payload) of each part for the spans stream, for spans and logged codes.
        pcm, carry, trim: the chunk, the acoustic state after it, and the first spans entry still needed.
        after: how many logged draws (spans) or chunks (job.completed) the writer counts on; fewer are a gap.
        same_as: what tells whether a second writing is the same, where that is not the data's digest.
    """
    kind, index, draws = _kind(payload)
    companions: list[Any] = [item for part in conditioning for item in part]
    if isinstance(payload, AudioChunk):
        companions = ["pcm", pcm, "start", payload.start_sample, "sha256", payload.sha256]
    body = encode_open(payload, job=job, by=by)
    args = [
        kind, token, role, payload.identity, same_as or digest(payload.data()), index, body, ttl_ms, draws, trim,
        carry, payload.type, after, *companions,
    ]  # fmt: skip
    return Call("append_if", keys.job_keys(job), args)


def _kind(payload: Payload) -> tuple[str, int, int]:
    """(append-if's kind, index, draws logged once it is written)."""
    match payload:
        case JobRequested():
            return "create", 0, 0
        case SpanWindow():
            return "span", payload.index, payload.end_draw
        case SpanTerminal():
            return "terminal", payload.index, payload.end_draw
        case CodesLogged():
            return "codes", payload.start_draw, payload.start_draw + payload.codes.shape[0]
        case AudioChunk():
            return "chunk", payload.index, 0
    return ("final" if payload.type in FINAL_TYPES else "note"), 0, 0


def digest_field(identity: str) -> str:
    """Where a job's head has the digest of the event of this identity; see append_if.lua."""
    return f"i:{identity}"


def appended(reply: Reply, payload: Payload, job: str) -> int | None:
    """The event's sequence number; None if it had been written before. Raises Refused."""
    status, seq, detail = reply
    if status == "ok":
        return seq
    if status == "already":
        return None
    raise Refused(status, detail, payload.type, job)


# --- leases ---------------------------------------------------------------------------------------------------------


def _lease_keys(job: str, role: str) -> list[str]:
    return [keys.lease(job, role), keys.log(job), keys.head(job)]


def take_lease(job: str, role: str, *, token: str, worker: str, ttl_ms: int, profile: str, max_strikes: int) -> Call:
    return Call("lease", _lease_keys(job, role), ["take", token, worker, ttl_ms, profile, role, max_strikes])


def renew_lease(job: str, role: str, *, token: str, ttl_ms: int) -> Call:
    return Call("lease", _lease_keys(job, role), ["renew", token, ttl_ms])


def release_lease(job: str, role: str, *, token: str, handed_over: bool, error: str = "") -> Call:
    """Give the lease back. Only a hand-over is free of a strike at the next take."""
    return Call("lease", _lease_keys(job, role), ["release", token, int(handed_over), error[:2000]])


# --- pointers and reservations --------------------------------------------------------------------------------------


def post_pointer(stream: str, job: str) -> Call:
    return Call("pointer", [stream, keys.posted(stream)], ["post", job])


def drop_pointer(stream: str, job: str, role: str) -> Call:
    return Call("pointer", [stream, keys.posted(stream)], ["drop", job, keys.group(role)])


_BUDGET = [
    keys.LIVE, keys.RESERVED, keys.EXPIRING, keys.RETIREMENTS, keys.UNARCHIVED, keys.UNARCHIVED_SINCE,
]  # fmt: skip


def reserve(job: str, *, bytes_: int, max_jobs: int, max_bytes: int, owner: str, model: str) -> Call:
    """Hold a job's worst case; the reply is [1 or 0, live jobs, bytes held]."""
    return Call("reserve", _BUDGET, ["take", job, bytes_, max_jobs, max_bytes, owner, model])


def hold(job: str, *, bytes_: int, owner: str, model: str) -> Call:
    """An accepted job is live, and holds its worst case, whatever the bounds."""
    return Call("reserve", _BUDGET, ["hold", job, bytes_, owner, model])


def give_back(job: str, owner: str = "") -> Call:
    """The job is gone: it holds nothing any more."""
    return Call("reserve", _BUDGET, ["give", job, owner])


def retire(job: str, *, model: str, owner: str, ttl_ms: int, bytes_: int) -> list[Call]:
    """Clear what a final job leaves in other slots; leaving the live set comes last, as it ends the sweeps.

    Doing so twice is harmless. `bytes_` is what the job's sound goes on to hold until its keys go.
    """
    return [
        drop_pointer(keys.requests(model, owner), job, keys.TALKER),
        drop_pointer(keys.ready(model), job, keys.ACOUSTIC),
        Call("reserve", _BUDGET, ["retire", job, ttl_ms, bytes_, owner, model]),
    ]


# --- webhooks --------------------------------------------------------------------------------------------------------

_WEBHOOKS = [keys.LIVE, keys.WEBHOOKS, keys.WEBHOOKS_OWED, keys.WEBHOOK_MESSAGES, keys.WEBHOOKS_DONE]


def owe_webhook(job: str, model: str) -> Call:
    """The job's end is to be told. Sent before the job is accepted, while it is in the live set."""
    return Call("webhooks", _WEBHOOKS, ["owe", job, model])


def claim_webhooks(models: Sequence[str], *, ttl_ms: int, most: int) -> Call:
    """Take what is due of jobs that are final; the reply is [claimed, job, attempt, job, attempt, …].

    `claimed` is when the claim lapses (ms), and names it in what is said of these jobs next.
    """
    return Call("webhooks", _WEBHOOKS, ["claim", ttl_ms, most, *models])


def tell_again(job: str, *, claimed: int, pause_ms: int, message: bytes = b"") -> Call:
    """Once more after a pause; `message` is kept for it, as the job's keys may go before."""
    return Call("webhooks", _WEBHOOKS, ["again", job, claimed, pause_ms, message])


def end_webhook(job: str, *, claimed: int, outcome: str = "") -> Call:
    """The job's end was told ("delivered"), or could not be for the last time ("given_up"); "": nothing to tell."""
    return Call("webhooks", _WEBHOOKS, ["done", job, claimed, outcome])


def drop_webhook(job: str) -> Call:
    """The job is forgotten, whoever has a claim."""
    return Call("webhooks", _WEBHOOKS, ["drop", job])


# --- the archive ----------------------------------------------------------------------------------------------------

_ARCHIVE = [keys.UNARCHIVED, keys.UNARCHIVED_SINCE, keys.ARCHIVED]


def claim_unarchived(*, ttl_ms: int, most: int) -> Call:
    """Take final jobs that no archive has; the reply is [claimed, job, job, …].

    `claimed` is when the claim lapses (ms), and names it in what is said of these jobs next.
    """
    return Call("archive", _ARCHIVE, ["claim", ttl_ms, most])


def put_off_archiving(job: str, *, claimed: int, pause_ms: int, failed: bool = False) -> Call:
    """Hold the claim for so long from now on, or leave the job for then; the reply is the new [claimed], or [0].

    `failed`: it is put off since an attempt failed, which is counted.
    """
    return Call("archive", _ARCHIVE, ["put_off", job, claimed, pause_ms, "failed" if failed else ""])


def end_archiving(job: str, *, claimed: int, archived: bool = True) -> Call:
    """The job is archived, which is counted, or gone."""
    return Call("archive", _ARCHIVE, ["done", job, claimed, "archived" if archived else ""])


def archive_again(jobs: Sequence[str]) -> Call:
    """Final jobs are to be archived, though they may have been; the reply is [how many were not waiting already]."""
    return Call("archive", _ARCHIVE, ["again", *jobs])


# --- recordings -----------------------------------------------------------------------------------------------------


def keep_sent_recording(sha256: str, content: bytes, *, ttl_ms: int, max_bytes: int) -> Call:
    """Keep what a request brought; the reply is [1 or 0, ms until there is room, or -1: there never is]."""
    names = [keys.sent_recording(sha256), keys.SENT_EXPIRING, keys.SENT_SIZES]
    return Call("sent_recording", names, [sha256, content, ttl_ms, max_bytes])


def use_artefact(name: str, *content: bytes, max_bytes: int, max_count: int) -> Call:
    """Mark an artefact as used, or keep a new one; the ones longest unused make room."""
    names = [keys.ARTEFACTS, keys.ARTEFACT_SIZES, keys.artefact(name)]
    return Call("artefacts", names, [name, max_bytes, max_count, keys.artefact(""), *content])
