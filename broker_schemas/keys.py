"""Names of every key, and how long a name's parts may be. The one place that knows them.

`{id}` is a Redis Cluster hash tag: a job's keys share a slot. A key's companions elsewhere carry its whole name as
their hash tag, and so share its slot.
"""

from __future__ import annotations

import re

TALKER, ACOUSTIC = "talker", "acoustic"
ROLES = (TALKER, ACOUSTIC)
ARCHIVE = "archive"  # owns no job, but tells that it lives as they do

# The live set, and in its slot what jobs hold of the budget until their keys go.
LIVE = "sl:live"  # zset: job id -> time of acceptance (ms)
RESERVED = "{sl:live}:reserved"  # hash: job id -> "<owner>\n<model>\n<bytes>"; field "" sums the bytes
EXPIRING = "{sl:live}:expiring"  # zset: "<owner>/<job id>" of final jobs -> when their keys go (ms)
RETIREMENTS = "{sl:live}:retirements"  # list: when the newest final jobs left the live set (ms)

# Final jobs that no archive has, in the slot of the live set: who joins it has just left that, or its keys go.
UNARCHIVED = "{sl:live}:unarchived"  # zset: job id -> when it is to be archived next, or its claim lapses (ms)
UNARCHIVED_SINCE = "{sl:live}:unarchived:since"  # zset: job id -> since when it has been to be archived (ms)
ARCHIVED = "{sl:live}:archived"  # hash: archived, of jobs, and failed, of attempts -> how often

# Jobs whose end is to be told, in the slot of the live set: who is in it has not ended.
WEBHOOKS = "{sl:live}:webhooks"  # zset: job id -> when it is to be told next, or its claim lapses (ms)
WEBHOOKS_OWED = "{sl:live}:webhooks:owed"  # hash: job id -> "<attempts>\n<model>"
WEBHOOK_MESSAGES = "{sl:live}:webhooks:messages"  # hash: job id -> what could not be told yet (MessagePack)
WEBHOOKS_DONE = "{sl:live}:webhooks:done"  # hash: delivered and given_up, of ends, and failed, of attempts -> how often

# Signals, all in one slot so that a worker waits for all of its own in one read.
TOMBSTONES = "sl:tombstones"  # stream, capped: ids of jobs that ended before they were done
TOMBSTONES_KEPT = 10_000
BELLS_KEPT = 1_000

WORKERS = "sl:workers"  # hash: worker's or archiver's name -> what it says of itself (MessagePack): its heartbeat
DRAINING = "sl:draining"  # set: names of workers that are to take no more jobs
SECRET = "sl:secret"  # string: signs job ids

# What recordings became, shared by the workers: one slot, so that old ones make room in the same call.
ARTEFACTS = "sl:artefacts"  # zset: artefact name -> when it was last used (µs)
ARTEFACT_SIZES = "{sl:artefacts}:sizes"  # hash: artefact name -> bytes; field "" sums them

VOICES = "sl:voices"  # hash: "<owner>/<name>" -> an uploaded voice's record (MessagePack)

# Recordings that requests brought, in the slot of the voices.
SENT_EXPIRING = "{sl:voices}:sent"  # zset: sha256 -> when the recording goes (ms)
SENT_SIZES = "{sl:voices}:sent:sizes"  # hash: sha256 -> bytes; field "" sums them

_PART = re.compile(r"[A-Za-z0-9._-]{1,128}")


def checked(part: str, what: str) -> str:
    """`part`, if it may stand in a key; raises ValueError with what to do otherwise."""
    if not _PART.fullmatch(part):
        raise ValueError(f"{what} {part!r} cannot be part of a key: use 1 to 128 of A-Z a-z 0-9 . _ -")
    return part


def log(job: str) -> str:
    return f"sl:{{{job}}}:log"


def head(job: str) -> str:
    """Hash that append-if keeps beside the log: next numbers and the digest of each identity, so no check scans."""
    return f"sl:{{{job}}}:head"


def spans(job: str) -> str:
    return f"sl:{{{job}}}:spans"


def audio(job: str) -> str:
    return f"sl:{{{job}}}:audio"


def carry(job: str) -> str:
    return f"sl:{{{job}}}:carry"


def lease(job: str, role: str) -> str:
    return f"sl:{{{job}}}:lease:{role}"


def job_keys(job: str) -> list[str]:
    """All keys of a job, in the order in which the scripts take them."""
    return [
        log(job), head(job), spans(job), audio(job), carry(job), lease(job, TALKER), lease(job, ACOUSTIC),
    ]  # fmt: skip


def requests(model: str, owner: str) -> str:
    return f"sl:requests:{model}:{owner}"


def owners(model: str) -> str:
    """Set of the owners that have ever posted to the model: which requests streams there are."""
    return f"sl:owners:{model}"


def ready(model: str) -> str:
    return f"sl:ready:{model}"


def posted(stream: str) -> str:
    """Hash beside a pointer stream: job id -> its entry, so that posting twice posts once."""
    return f"{{{stream}}}:posted"


def bell(model: str, role: str) -> str:
    """Stream, capped: rings when a role has something to look at. A hint only; losing it costs a poll interval."""
    return f"{{{TOMBSTONES}}}:bell:{model}:{role}"


def jobs(owner: str) -> str:
    return f"sl:jobs:{owner}"


def recording(sha256: str) -> str:
    """An uploaded recording by its content, in the slot of the voices that have it."""
    return f"{{{VOICES}}}:recording:{sha256}"


def sent_recording(sha256: str) -> str:
    """A recording that a request brought. Apart from the uploaded one: nobody's deletion takes another's from them."""
    return f"{{{VOICES}}}:sent:{sha256}"


def artefact(name: str) -> str:
    return f"{{{ARTEFACTS}}}:{name}"


def group(role: str) -> str:
    return f"{role}s"
