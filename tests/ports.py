"""Ports for servers under test."""

from __future__ import annotations

import random
import socket

_RANGE = range(15_000, 32_000)  # below those that the kernel gives to outgoing connections: it stays free while unused


def free_port() -> int:
    for port in random.SystemRandom().sample(_RANGE, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")
