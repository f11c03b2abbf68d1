"""The uvicorn server that ends streams by itself when it is asked to leave."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

GRACE_S = 10  # for answers that are on their way


class Server(uvicorn.Server):
    """Tells the service first: open streams end, and no job is taken for dropped by its client."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.app.state.service.stopping.set()
        await super().shutdown(sockets)


def server(app: FastAPI, *, host: str, port: int, log_level: str = "info") -> Server:
    """A server for `create_app`'s app; `run()` it, or await `serve()`."""
    return Server(
        uvicorn.Config(
            app, host=host, port=port, log_level=log_level, timeout_graceful_shutdown=GRACE_S, server_header=False
        )
    )
