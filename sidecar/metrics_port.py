"""The port for operators, `--metrics-port`: the endpoints that no client of the engine may reach.

Rule: acts; nothing here touches an exchange. Every process serves it, each answering for all of them.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Response

from sidecar.observers.board import Board
from sidecar.observers.peers import PeerBoard
from sidecar.readiness import Readiness
from sidecar.server.run import beside


@dataclass(frozen=True, slots=True)
class MetricsPort:
    """What is needed to serve it. tls: None for plain HTTP. peers: None without `--metrics-peers`."""

    listener: socket.socket
    tls: ssl.SSLContext | None
    board: Board
    peers: PeerBoard | None = None

    @asynccontextmanager
    async def serving(self, ready: Readiness) -> AsyncIterator[None]:
        """Serve it, `/ready` with what `ready` says, in the running loop for as long as the block lasts."""
        async with beside(_endpoints(self.board, self.peers, ready), self.tls, self.listener):
            yield


def _endpoints(board: Board, peers: PeerBoard | None, ready: Readiness) -> FastAPI:
    from sidecar.observers.exposition import CONTENT_TYPE, Exposition  # only when there is such a port

    exposition = Exposition(board, peers)
    silent: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
    app = FastAPI(openapi_url=None, telemetry=silent)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(exposition.text(), headers={"content-type": CONTENT_TYPE})

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200)

    app.get("/ready")(ready.answer)
    return app
