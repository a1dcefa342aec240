"""A served application on a loopback socket, and a client that sees and sends bytes.

Rule: `serving` fails a test that leaves a connection, a task or an error in the event loop behind.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import uvicorn

from sidecar.server.asgi import Application, Scope
from sidecar.server.client import Client
from sidecar.server.limits import DEFAULT_LIMITS, ClientLimits
from sidecar.server.protocol import ClientProtocol

PATIENCE_S = 5.0
"""Seconds after which a wait has failed."""


def direct(serve: Callable[[Client], Awaitable[None]]) -> Application:
    """The ASGI application that gives each request's Client to `serve`."""

    async def application(scope: Scope, receive: Any, send: Any) -> None:
        await serve(scope["extensions"]["sidecar.client"])

    return application


async def settled(condition: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Wait until `condition` holds."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.001)


@dataclass
class Stage:
    """A running server."""

    port: int
    server: uvicorn.Server

    @property
    def connections(self) -> set[Any]:
        """The protocols of its open connections."""
        return set(self.server.server_state.connections)

    @asynccontextmanager
    async def caller(self, *, receive_bytes: int | None = None) -> AsyncIterator[Caller]:
        """A connected client; `receive_bytes` makes its kernel buffer that small."""
        with socket.socket() as sock:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if receive_bytes is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
            yield Caller(sock)


@asynccontextmanager
async def serving(
    app: Application,
    *,
    context: ssl.SSLContext | None = None,
    keep_alive_s: Any = 60,
    limits: ClientLimits = DEFAULT_LIMITS,
) -> AsyncIterator[Stage]:
    """Serve `app` with a uvicorn server in this loop.

    At the end what `uvicorn.Server.shutdown` does, without its sleeps of 100 ms.
    """
    loop = asyncio.get_running_loop()
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, error: errors.append(error))
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        http=cast(type[asyncio.Protocol], partial(ClientProtocol, limits=limits)),
        ws="none",
        lifespan="off",
        log_config=None,
        proxy_headers=False,
        timeout_keep_alive=keep_alive_s,
        ssl_context_factory=(lambda _config, _default: context) if context else None,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    state = server.server_state
    try:
        yield Stage(listener.getsockname()[1], server)
    finally:
        for each in server.servers:
            each.close()
        for connection in list(state.connections):
            connection.shutdown()
        await settled(lambda: not state.connections and not state.tasks)
        for each in server.servers:
            await each.wait_closed()
    assert not errors


@dataclass
class Answer:
    """An answer off the wire; `whole` says that it ended as its framing promised."""

    version: str
    status: int
    reason: str
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    whole: bool = True
    trailers: bytes = b""

    def get(self, name: bytes) -> bytes | None:
        """The only value of a field."""
        values = [value for key, value in self.headers if key.lower() == name]
        assert len(values) < 2
        return values[0] if values else None

    @property
    def closes(self) -> bool:
        """Whether it announces the connection's end."""
        return self.get(b"connection") == b"close"


@dataclass
class Caller:
    """A client; reads answers by its own small parser."""

    sock: socket.socket
    _held: bytes = field(default=b"")

    async def send(self, *pieces: bytes) -> None:
        """Send each piece in a segment of its own, for what the loopback is worth."""
        loop = asyncio.get_running_loop()
        for piece in pieces:
            await loop.sock_sendall(self.sock, piece)

    async def ask(self, request: bytes, *, bodiless: bool = False) -> Answer:
        """Send a request and read its answer."""
        await self.send(request)
        return await self.answer(bodiless=bodiless)

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """Read one answer, or as much of it as comes."""
        async with asyncio.timeout(PATIENCE_S):
            head = await self.until(b"\r\n\r\n")
            line, *fields = head[:-4].split(b"\r\n")
            version, status, reason = line.decode().split(" ", 2)
            headers = [(name, value[1:]) for name, _, value in (each.partition(b":") for each in fields)]
            answer = Answer(version, int(status), reason, headers)
            if not (bodiless or status.startswith("1") or status in ("204", "304")):
                try:
                    await self._read_body(answer)
                except (EOFError, ConnectionResetError):
                    answer.whole = False
                    answer.body += self._held
                    self._held = b""
            return answer

    async def _read_body(self, answer: Answer) -> None:
        if answer.get(b"transfer-encoding") == b"chunked":
            chunks: list[bytes] = []
            try:
                while size := int(await self.until(b"\r\n"), 16):
                    chunks.append((await self.exactly(size + 2))[:-2])
            finally:
                answer.body = b"".join(chunks)
            while (line := await self.until(b"\r\n")) != b"\r\n":
                answer.trailers += line
        elif (length := answer.get(b"content-length")) is not None:
            answer.body = await self.exactly(int(length))
        else:
            answer.body = await self.rest()

    async def until(self, mark: bytes) -> bytes:
        """Read up to and with `mark`. Raises EOFError."""
        while mark not in self._held:
            await self._more()
        found, mark, self._held = self._held.partition(mark)
        return found + mark

    async def exactly(self, size: int) -> bytes:
        """Read that many bytes. Raises EOFError."""
        pieces = [self._held]
        missing = size - len(self._held)
        try:
            while missing > 0:
                self._held = b""
                await self._more()
                pieces.append(self._held)
                missing -= len(self._held)
        finally:
            self._held = b"".join(pieces)
        got, self._held = self._held[:size], self._held[size:]
        return got

    async def rest(self) -> bytes:
        """Read to the end of the connection. Raises ConnectionResetError."""
        pieces: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S):
            try:
                while True:
                    pieces.append(self._held)
                    self._held = b""
                    await self._more()
            except EOFError:
                return b"".join(pieces)

    async def closed(self) -> bool:
        """Whether the connection ends here, without another byte."""
        return await self.rest() == b""

    async def reset(self) -> bool:
        """Whether the connection ends with a reset."""
        try:
            await self.rest()
        except ConnectionResetError:
            return True
        return False

    def half_close(self) -> None:
        """Send no more."""
        self.sock.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        """Leave with a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    async def _more(self) -> None:
        piece = await asyncio.get_running_loop().sock_recv(self.sock, 1 << 18)
        if not piece:
            raise EOFError
        self._held += piece


def get(target: str = "/", *lines: str) -> bytes:
    """A GET."""
    return "".join(f"{line}\r\n" for line in (f"GET {target} HTTP/1.1", "Host: a", *lines, "")).encode()


def post(body: bytes, *lines: str, target: str = "/") -> bytes:
    """A POST with its length."""
    head = (f"POST {target} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *lines, "")
    return "".join(f"{line}\r\n" for line in head).encode() + body


def chunked(*pieces: bytes, trailers: bytes = b"") -> bytes:
    """A body in chunks."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return body + b"0\r\n" + trailers + b"\r\n"
