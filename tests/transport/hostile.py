"""A scripted engine on a loopback socket that does exactly what a test says, right or wrong.

A script is a coroutine function that is called with every accepted connection. Whatever hangs, on either
side, fails after PATIENCE_S.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import httpx

# Far over what any of these tests needs, far under the patience of whoever runs them.
PATIENCE_S = 10.0

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Script = Callable[["Peer"], Awaitable[None]]


class Peer:
    """The engine's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader = reader
        self.writer = writer
        self.number = number
        self.requests: list[bytes] = []
        self.ended = asyncio.Event()

    async def request(self) -> bytes:
        """Read one request with its body; b"" (and ended set) if the client closes. Kept in requests."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended.set()
            return b""
        body = b""
        fields = head.lower()
        if b"\r\ncontent-length: " in fields:
            body = await self.reader.readexactly(int(fields.split(b"content-length: ")[1].split(b"\r\n")[0]))
        elif b"\r\ntransfer-encoding: chunked\r\n" in fields:
            body = await self.reader.readuntil(b"0\r\n\r\n")
        self.requests.append(head + body)
        return head + body

    async def send(self, *pieces: bytes) -> None:
        """Send each piece so that the client reads it by itself."""
        for piece in pieces:
            self.writer.write(piece)
            await turns(3)

    async def close(self) -> None:
        """End the connection with a FIN."""
        self.writer.close()
        await turns(2)

    async def reset(self) -> None:
        """End the connection with a RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        await turns(2)

    async def left(self) -> None:
        """Wait for the end that a script saw, which must come now and not by an expiry."""
        async with asyncio.timeout(1.0):
            await self.ended.wait()

    async def gone(self) -> int:
        """Wait until the client has closed, and set ended; return how many bytes it sent before."""
        size = 0
        try:
            while piece := await self.reader.read(1 << 20):
                size += len(piece)
        except ConnectionError:
            pass
        self.ended.set()
        return size


class Hostile:
    """Listens while entered; scripts that fail, fail the test."""

    def __init__(
        self,
        script: Script,
        *,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        buffer_bytes: int = 0,
    ) -> None:
        self._script = script
        self._host = host
        self._tls = tls
        self._buffer_bytes = buffer_bytes
        self._scripts = asyncio.TaskGroup()
        self._running: list[asyncio.Task[None]] = []
        self._failures: list[BaseException] = []
        self._patience = asyncio.timeout(PATIENCE_S)
        self.peers: list[Peer] = []

    async def __aenter__(self) -> Self:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self._buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer_bytes)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._buffer_bytes)
        sock.bind((self._host, 0))
        self.port: int = sock.getsockname()[1]
        self._server = await asyncio.start_server(self._accepted, sock=sock, ssl=self._tls, backlog=1024)
        await self._patience.__aenter__()
        await self._scripts.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._running:
            task.cancel()
        await self._scripts.__aexit__(None, None, None)
        for peer in self.peers:
            peer.writer.transport.abort()
        await turns(3)
        await self._patience.__aexit__(kind, error, trace)
        if error is None and self._failures:
            raise self._failures[0]

    @property
    def origin(self) -> str:
        """scheme://host:port"""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    def get(
        self, path: str = "/", *, method: str = "GET", headers: tuple[tuple[str, str], ...] = ()
    ) -> httpx.Request:
        """A request without a body."""
        return httpx.Request(
            method, self.origin + path, headers=[("Host", "engine"), *headers], stream=httpx.ByteStream(b"")
        )

    def post(self, body: bytes = b"{}") -> httpx.Request:
        """A request with a body whose bytes are known."""
        headers = [("Host", "engine"), ("Content-Length", str(len(body)))]
        return httpx.Request("POST", self.origin + "/", headers=headers, stream=httpx.ByteStream(body))

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer, len(self.peers))
        self.peers.append(peer)
        self._running.append(self._scripts.create_task(self._run(peer)))

    async def _run(self, peer: Peer) -> None:
        try:
            await self._script(peer)
        except ConnectionError:
            peer.ended.set()
        except Exception as error:
            self._failures.append(error)


async def turns(count: int) -> None:
    """Let the loop turn, so that what was written is read by the other side."""
    for _ in range(count):
        await asyncio.sleep(0)


def answering(*answers: bytes) -> Script:
    """Answers the n-th request of each connection with the n-th answer, then waits for the client's end."""

    async def script(peer: Peer) -> None:
        for answer in answers:
            if not await peer.request():
                return
            await peer.send(answer)
        await peer.gone()

    return script


async def serve_ok(peer: Peer) -> None:
    """A well-behaved engine."""
    while await peer.request():
        await peer.send(OK)


async def body_of(response: httpx.Response) -> bytes:
    """The whole body, pulled."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    return b"".join([piece async for piece in response.stream])
