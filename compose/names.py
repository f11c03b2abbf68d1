"""What processes call themselves: unique, and known to the host that they run on."""

from __future__ import annotations

import os
import secrets
import socket


def worker_name(role: str) -> str:
    """Unique among all workers; begins with `worker_prefix`."""
    return f"{worker_prefix(role)}{os.getpid()}-{secrets.token_hex(2)}"


def worker_prefix(role: str) -> str:
    """What the names of a role's workers on this host begin with."""
    host = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in socket.gethostname())
    return f"{role}-{host[:64]}-"
