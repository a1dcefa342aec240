"""The floor: the least that a proxy in Python can do. Two asyncio protocols on uvloop that relay bytes.

Rule: bodies are read whole, because a proxy that edits them must, and answers are passed on as they come;
httptools finds where messages end and nothing else is looked at. With LEGS 2 each request is sent twice, one
after the other, and the first answer is dropped: a prefill and a decode. Usage: floor PORT ENGINE_PORT [LEGS]
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import httptools
import uvloop


class ToEngine(asyncio.Protocol):
    """A connection to the engine, kept for the next request when its answer has ended."""

    transport: asyncio.Transport

    def __init__(self, idle: list[ToEngine]) -> None:
        self._idle = idle
        self._client: ToClient | None = None
        self._complete = False
        self._legs = 1

    def ask(self, client: ToClient, request: bytes, legs: int) -> None:
        """Send a request so many times; the last answer is this client's."""
        self._client, self._complete = client, False
        self._legs = legs
        if legs > 1:
            self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self.transport.write(request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        client = self._client
        if client is None:
            self.transport.abort()
            return
        self._parser.feed_data(data)
        if self._legs == 1:
            client.transport.write(data)
        if self._complete:
            self._ended(client)

    def _ended(self, client: ToClient) -> None:
        if self._legs > 1:
            self.ask(client, self._request, self._legs - 1)
            return
        self._client = None
        self._idle.append(self)

    def on_message_complete(self) -> None:
        self._complete = True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._client is not None:
            self._client.transport.abort()


class ToClient(asyncio.Protocol):
    """A client's connection, with one request at a time."""

    transport: asyncio.Transport

    def __init__(self, engine_port: int, legs: int, idle: list[ToEngine]) -> None:
        self._engine_port = engine_port
        self._legs = legs
        self._idle = idle
        self._target = b""
        self._pieces: list[bytes] = []
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, target: bytes) -> None:
        self._target = target

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        body = b"".join(self._pieces)
        self._pieces = []
        head = (
            b"POST %b HTTP/1.1\r\nhost: engine\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % (self._target, len(body))
        )
        request = head + body
        while self._idle:
            engine = self._idle.pop()
            if not engine.transport.is_closing():
                engine.ask(self, request, self._legs)
                return
        self._connecting = asyncio.get_running_loop().create_task(self._connect_and_ask(request))

    async def _connect_and_ask(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, engine = await loop.create_connection(lambda: ToEngine(self._idle), "127.0.0.1", self._engine_port)
        engine.ask(self, request, self._legs)


async def serve(port: int, engine_port: int, legs: int = 1) -> None:
    """Serve until ended from outside."""
    idle: list[ToEngine] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: ToClient(engine_port, legs, idle), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(*map(int, sys.argv[1:])))
