"""The HTTP listener of an embedded engine: uvicorn's protocol on a server that can vanish.

Rule: no signals, no main loop, no lifespan; several listeners live in one event loop, and each starts and
ends at once.
"""

from __future__ import annotations

import asyncio
import socket
import struct

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

KEEP_ALIVE_S = 5
"""Idle connections are closed after so long (vLLM's VLLM_HTTP_TIMEOUT_KEEP_ALIVE)."""

RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""struct linger: on, 0 seconds. Closing then sends RST instead of FIN (socket(7))."""


class HttpListener:
    """Serves `app`."""

    def __init__(self, app: FastAPI) -> None:
        self._config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._state = ServerState()
        self._state.default_headers = [(b"server", b"uvicorn")]
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Listens and returns the port; raises OSError when the address is taken."""
        self._config.load()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._protocol, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def drop(self, *, reset: bool = False) -> None:
        """Stops listening and cuts every connection, with `reset` by a TCP reset, as a crash may."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            if reset:
                raw = connection.transport.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            connection.transport.abort()

    async def close(self) -> None:
        """Drops, and waits for the requests, which end because their clients are gone."""
        self.drop()
        await asyncio.gather(*self._state.tasks, return_exceptions=True)

    def _protocol(self) -> asyncio.Protocol:
        loop = asyncio.get_running_loop()
        return HttpToolsProtocol(self._config, self._state, {}, loop)
