"""What an operator can set about the api."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field

from broker_schemas.recordings import RecordingLimits
from producer.submit import Limits


@dataclass(frozen=True, slots=True)
class VoiceLimits:
    """How many voices may be uploaded, by one owner and by all, and what their recordings may hold together.

    sent_bytes: what the recordings may hold that requests brought, and that jobs wait to use.
    """

    of_owner: int = 100
    of_all: int = 1_000
    max_bytes: int = 512 << 20
    sent_bytes: int = 512 << 20
    recording: RecordingLimits = field(default_factory=RecordingLimits)


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Where the end of jobs may be told, and how. Times in seconds.

    hosts: `host` or `host:port`; none at all switches webhooks off.
    secrets: each signs what is sent.
    pauses_s: after each attempt that failed; after one more, the webhook is given up.
    claim_s: how long one process has for an attempt before another may take over; longer than `timeout_s`.
    """

    hosts: tuple[str, ...] = ()
    secrets: tuple[str, ...] = field(default=(), repr=False)
    pauses_s: tuple[float, ...] = (5, 15, 60, 180, 420, 900, 1800)
    timeout_s: float = 10.0
    claim_s: float = 30.0
    look_every_s: float = 1.0
    at_once: int = 32  # attempts of one process under way


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Times in seconds, sizes in bytes.

    api_keys: each `key` or `owner:key`; none at all leaves the api open, to the one owner "anonymous".
    reference_hosts: `host` or `host:port`, where recordings may be fetched from; none at all switches that off.
    max_body_bytes: of a request, besides the recording that it may bring.
    """

    api_keys: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    deadline_s: float = 1800.0  # of a job whose request names none
    max_deadline_s: float = 86_400.0
    max_wait_s: float = 60.0  # of a long poll
    max_body_bytes: int = 1 << 20
    keep_alive_s: float = 15.0  # the longest silence of an event stream
    broker_patience_s: float = 60.0  # how long an open stream waits for a broker that is away
    voices: VoiceLimits = field(default_factory=VoiceLimits)
    reference_hosts: tuple[str, ...] = ()
    reference_timeout_s: float = 10.0  # of a fetch
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    files_bytes: int = 1 << 30  # encoded files kept on disk
    name: str = field(default_factory=lambda: f"api-{socket.gethostname()}-{os.getpid()}")
