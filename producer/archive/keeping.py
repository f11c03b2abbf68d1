"""One job's files: `yyyy/mm/dd/<job id>.json`, of the day of the request in UTC, and the sound beside it.

The facts come last: where they are, the sound is. Doing it again writes nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
from datetime import UTC, datetime
from typing import Any

from broker_schemas.job import JobState
from producer.archive.ended import Ended, read_ended, read_sound
from producer.archive.facts import facts_of
from producer.archive.sound import ENCODERS
from producer.archive.store import Store

_log = logging.getLogger(__name__)


def keep(client: Any, store: Store, job: str, format_: str) -> bool:
    """Archive a job; False where it was there as it is. Raises as `read_ended`, `read_sound` and the store do."""
    ended = read_ended(client, job)
    facts = facts_of(ended)
    stem, kept = _place(store, ended.state)
    if kept is not None and {**kept, "sound": None} == {**facts, "sound": None}:
        return False
    sound = _keep_sound(client, store, ended, f"{stem}.{format_}") if ended.sounds else None
    store.write(f"{stem}.json", _written(facts | {"sound": sound}))
    return True


def _place(store: Store, state: JobState) -> tuple[str, dict[str, Any] | None]:
    """The files' name without a suffix, and the facts that are there.

    An Idempotency-Key may bring a job's id back once the job has expired: that one goes beside the first.
    """
    day = datetime.fromtimestamp(state.requested_at / 1000, UTC).strftime("%Y/%m/%d")
    first = f"{day}/{state.id}"
    kept = _kept(store, first)
    if kept is None or kept["timings"]["requested_at"] == state.requested_at / 1000:
        return first, kept
    other = f"{first}-{state.requested_at}"
    return other, _kept(store, other)


def _kept(store: Store, stem: str) -> dict[str, Any] | None:
    """None where there is nothing, or what cannot be facts of a job: those take its place."""
    content = store.read(f"{stem}.json")
    try:
        kept = json.loads(content or b"")
        kept["timings"]["requested_at"]
    except (ValueError, KeyError, TypeError):
        return None
    return kept


def _keep_sound(client: Any, store: Store, ended: Ended, name: str) -> dict[str, Any] | None:
    """What is told of the file; None where an older api accepted the job, and nobody says how its samples lie."""
    request, pcm = ended.state.requested, read_sound(client, ended)
    if request.sample_rate is None or request.channels is None:
        _log.error("job %s says no sample rate, as an older api accepted it: its facts alone are kept", ended.state.id)
        return None
    suffix = name.rsplit(".", 1)[1]
    content = ENCODERS[suffix](pcm, request.sample_rate, request.channels)
    store.write(name, content)
    return {
        "file": name.rsplit("/", 1)[1],
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "pcm_sha256": hashlib.sha256(pcm).hexdigest(),
        "sample_rate": request.sample_rate,
        "channels": request.channels,
        "samples": ended.state.samples,
        "seconds": ended.state.samples / request.sample_rate,
    }


def _written(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, ensure_ascii=False, indent=2).encode() + b"\n"
