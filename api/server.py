"""The uvicorn server that ends streams by itself when it is asked to leave."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn
from fastapi import FastAPI

GRACE_S = 10  # for answers that are on their way


class Server(uvicorn.Server):
    """Tells the service first: open streams end, and no job is taken for dropped by its client."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.app.state.service.stopping.set()
        await super().shutdown(sockets)


def config(app: FastAPI, *, grace_s: int = GRACE_S, **options: Any) -> uvicorn.Config:
    """How uvicorn serves `create_app`'s app; `options` are uvicorn's own."""
    return uvicorn.Config(
        app,
        timeout_graceful_shutdown=grace_s,
        server_header=False,
        ws_per_message_deflate=False,  # sound hardly shrinks, and compressing it would hold up all others
        **options,
    )
