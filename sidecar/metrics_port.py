"""The port for operators, `--metrics-port`: the endpoints that no client of the engine may reach.

Rule: acts; nothing here touches an exchange. Every process serves it, each answering for all of them.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Response

from sidecar.observers.board import Board
from sidecar.observers.peers import PeerBoard
from sidecar.readiness import Readiness
from sidecar.server.run import beside

if TYPE_CHECKING:
    from sidecar.debug.endpoints import Debug


@dataclass(frozen=True, slots=True)
class MetricsPort:
    """What is needed to serve it. tls: None for plain HTTP. peers: None without `--metrics-peers`."""

    listener: socket.socket
    tls: ssl.SSLContext | None
    board: Board
    peers: PeerBoard | None = None

    @asynccontextmanager
    async def serving(self, ready: Readiness, debug: Debug | None = None) -> AsyncIterator[None]:
        """Serve it in the running loop for as long as the block lasts.

        `/ready` with what `ready` says, and the debug endpoints if given.
        """
        async with beside(_endpoints(self, ready, debug), self.tls, self.listener):
            try:
                yield
            finally:
                if debug:
                    debug.stopping.set()


def _endpoints(port: MetricsPort, ready: Readiness, debug: Debug | None) -> FastAPI:
    from sidecar.observers.exposition import CONTENT_TYPE, Exposition  # only when there is such a port

    exposition = Exposition(port.board, port.peers)
    silent: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
    app = FastAPI(openapi_url=None, telemetry=silent)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(exposition.text(), headers={"content-type": CONTENT_TYPE})

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200)

    app.get("/ready")(ready.answer)
    if debug:
        app.include_router(debug.router())
    return app
