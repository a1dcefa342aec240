"""Runs a sidecar with its debug endpoints in the test's loop, and asks them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sidecar.app import Shared, server_of
from sidecar.metrics_port import MetricsPort
from sidecar.observers.board import Board
from sidecar.observers.metrics import Metrics
from sidecar.observers.pull_metrics import PullMetrics
from sidecar.server.run import listen
from sidecar.settings import load
from tests.serving import Said, Served, post

DEBUG = "--debug-endpoints"


@dataclass
class Debugged:
    """data: the port for clients. debug: the one for operators."""

    data: Served
    debug: Served

    async def explain(
        self, path: str, body: bytes, headers: Iterable[tuple[str, str]] = (), more: str = ""
    ) -> Any:
        """The explanation of a POST."""
        answer = await self.debug.post(f"/debug/explain?path={path}{more}", body, headers)
        assert (answer.status, answer.all("content-type")) == (200, ["application/json"]), answer
        return answer.json

    async def get(self, path: str) -> Said:
        """The answer of the debug port."""
        return await self.debug.ask(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())

    async def exchanges(self, query: str = "") -> list[dict[str, Any]]:
        """The exchanges that are remembered, the newest first."""
        found: list[dict[str, Any]] = (await self.get(f"/debug/pulls{query}")).json["exchanges"]
        return found

    @asynccontextmanager
    async def events(self) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
        """The stream of events, as pairs of name and value."""
        async with asyncio.timeout(15), self.debug.connected() as (reader, writer):
            writer.write(b"GET /debug/events HTTP/1.1\r\nhost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            yield _events(reader)


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    while line := await reader.readline():  # those of the chunks' framing are neither
        if line.startswith(b"event: "):
            name = line[7:].decode().strip()
        elif line.startswith(b"data: "):
            yield name, json.loads(line[6:])


@asynccontextmanager
async def debugging(engine_port: int, *flags: str) -> AsyncIterator[Debugged]:
    """Run it before a decoder at `engine_port` for as long as the block lasts."""
    listener, beside = listen("127.0.0.1", 0), listen("127.0.0.1", 0)
    port, debug_port = listener.getsockname()[1], beside.getsockname()[1]
    ports = [f"--port={port}", f"--model-server-port={engine_port}", f"--metrics-port={debug_port}"]
    # Engines' counters are read from the start on where that is on; tests count what an engine is sent.
    quiet = ("--secure-serving=false", "--pull-verification=off")
    settings = load([*ports, *quiet, *flags], {"POD_IP": "127.0.0.1"})
    board = Board(1)
    counting = [Metrics(board.row(0)), PullMetrics(board.row(0))]
    server = server_of(settings, counting, Shared(None, MetricsPort(beside, None, board)), row=board.row(0))
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup(sockets=[listener])
    served = Served(port, server)
    try:
        yield Debugged(served, Served(debug_port, server))
    finally:
        server.config.timeout_graceful_shutdown = 1
        await served.stop()


__all__ = ["DEBUG", "Debugged", "debugging", "post"]
