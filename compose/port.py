"""Where the api listens."""

from __future__ import annotations

import errno
import socket

from compose.trouble import PORT_TAKEN, USAGE, Trouble


def listening_socket(host: str, port: int) -> socket.socket:
    """Bound and listening, so that a taken port is known at once. Raises Trouble."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} is in use: choose another with --port, or 0 for a free one"
            raise Trouble(message, PORT_TAKEN) from error
        raise Trouble(f"cannot listen at {host} port {port}: {error.strerror or error}", USAGE) from error
