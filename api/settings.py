"""What an operator can set about the api."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field

from producer.submit import Limits


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Times in seconds, sizes in bytes.

    api_keys: each `key` or `owner:key`; none at all leaves the api open, to the one owner "anonymous".
    """

    api_keys: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    deadline_s: float = 1800.0  # of a job whose request names none
    max_deadline_s: float = 86_400.0
    max_wait_s: float = 60.0  # of a long poll
    max_body_bytes: int = 1 << 20
    keep_alive_s: float = 15.0  # the longest silence of an event stream
    broker_patience_s: float = 60.0  # how long an open stream waits for a broker that is away
    files_bytes: int = 1 << 30  # encoded files kept on disk
    name: str = field(default_factory=lambda: f"api-{socket.gethostname()}-{os.getpid()}")
