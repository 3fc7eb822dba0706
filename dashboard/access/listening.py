"""Serve at sockets that listen already, and say so once requests are answered."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn


class Server(uvicorn.Server):
    """uvicorn's server, which says by a call that it serves."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._say_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._say_started()
