"""The uvicorn server that ends streams by itself when it is asked to leave."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn
from fastapi import FastAPI

from api.service import Service

GRACE_S = 10  # for answers that are on their way


class Server(uvicorn.Server):
    """Tells the service first: open streams end, and no job is taken for dropped by its client."""

    def __init__(self, app: FastAPI, *, grace_s: int = GRACE_S, **options: Any) -> None:
        """Serves `create_app`'s app; `options` are those of uvicorn's Config."""
        super().__init__(
            uvicorn.Config(
                app,
                timeout_graceful_shutdown=grace_s,
                server_header=False,
                ws_per_message_deflate=False,  # sound hardly shrinks, and compressing it would hold up all others
                **options,
            )
        )
        self._service: Service = app.state.service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.stopping.set()
        await super().shutdown(sockets)
