"""A scripted engine on a loopback socket: records what it was sent, answers what the test tells it to."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

Headers = Iterable[tuple[str, str]]


@dataclass
class Got:
    """One request as it came off the wire. closed: the sidecar closed before the answer ended."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    came_s: float
    answered_s: float | None = None
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    closed_s: float | None = None

    def all(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for key, value in self.headers if key.lower() == name]

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


class Answer:
    """What a script answers with."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def raw(self, data: bytes) -> None:
        """Bytes, as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def head(self, status: int = 200, headers: Headers = ()) -> None:
        """A chunked answer's head."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        await self.raw(f"HTTP/1.1 {status} Said\r\n{lines}transfer-encoding: chunked\r\n\r\n".encode())

    async def chunk(self, data: bytes) -> None:
        """One chunk."""
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        """The last chunk."""
        await self.raw(b"0\r\n\r\n")

    async def json(self, value: Any, status: int = 200, headers: Headers = ()) -> None:
        """A whole JSON answer with its length."""
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = f"HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\n{lines}"
        await self.raw(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)

    async def events(self, *events: bytes, gap_s: float = 0.0) -> None:
        """A whole SSE answer, one chunk an event."""
        await self.head(headers=[("content-type", "text/event-stream; charset=utf-8")])
        for event in events:
            await self.chunk(event)
            await asyncio.sleep(gap_s)
        await self.end()

    def drop(self) -> None:
        """End the connection here."""
        self._writer.transport.abort()

    def reset(self) -> None:
        """End the connection here with a reset, so that what was written may be lost too (socket(7))."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Script = Callable[[Got, Answer], Awaitable[None]]


def saying(value: Any, status: int = 200) -> Script:
    """Answers always so: JSON, or bytes as they are."""

    async def script(got: Got, answer: Answer) -> None:
        await answer.json(value, status)

    return script


COMPLETION: dict[str, Any] = {
    "id": "c",
    "choices": [{"text": "hello"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}
PARAMS: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[7, 8]],
    "remote_engine_id": "engine-p",
    "remote_request_id": "cmpl-p-0",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "a_key_of_tomorrow": {"kept": [1.0, 2e-7]},
}
PREFILLED: dict[str, Any] = {
    "id": "p",
    "choices": [{"text": "h"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}},
    "kv_transfer_params": PARAMS,
}


async def complete(got: Got, answer: Answer) -> None:
    """The answer of an ordinary decoder."""
    await answer.json(COMPLETION)


async def prefilled(got: Got, answer: Answer) -> None:
    """The answer of an ordinary NIXL prefiller."""
    await answer.json(PREFILLED)


@dataclass
class ScriptedEngine:
    """A running engine: where it listens, and what came."""

    host: str
    port: int
    script: Script
    requests: list[Got] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    stop_accepting: Callable[[], None] = lambda: None

    @property
    def netloc(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def last(self) -> Got:
        """The newest request."""
        return self.requests[-1]

    async def came(self, count: int = 1) -> Got:
        """Wait until that many requests have come; the newest."""
        async with asyncio.timeout(5):
            while len(self.requests) < count:
                await asyncio.sleep(0.002)
        return self.last

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while got := await _read_request(reader):
                self.requests.append(got)
                if not await self._answer(got, reader, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            self.open -= 1
            writer.transport.abort()

    async def _answer(self, got: Got, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Run the script until it ends or the other side closes; whether the connection goes on."""
        script = asyncio.ensure_future(self.script(got, Answer(writer)))
        closing = asyncio.ensure_future(_closed(reader))
        await asyncio.wait((script, closing), return_when=asyncio.FIRST_COMPLETED)
        if not script.done():
            got.closed_s = monotonic()
            got.closed.set()
        for task in (script, closing):
            task.cancel()
        outcomes = await asyncio.gather(script, closing, return_exceptions=True)
        got.answered_s = monotonic()
        if isinstance(outcomes[0], Exception) and not isinstance(outcomes[0], ConnectionError):
            raise outcomes[0]
        return not got.closed.is_set() and not writer.transport.is_closing()


async def _closed(reader: asyncio.StreamReader) -> None:
    while not reader.at_eof() and reader.exception() is None:
        await asyncio.sleep(0.002)


async def _read_request(reader: asyncio.StreamReader) -> Got | None:
    line = await reader.readline()
    if not line:
        return None
    method, target, _ = line.decode("latin-1").split(" ", 2)
    headers: list[tuple[str, str]] = []
    while field_line := (await reader.readline()).decode("latin-1").rstrip("\r\n"):
        name, _, value = field_line.partition(":")
        headers.append((name, value.strip()))
    came_s = monotonic()
    return Got(method, target, headers, await _read_body(reader, headers), came_s)


async def _read_body(reader: asyncio.StreamReader, headers: list[tuple[str, str]]) -> bytes:
    fields = {name.lower(): value for name, value in headers}
    if fields.get("transfer-encoding") == "chunked":
        pieces = []
        while size := int(await reader.readline(), 16):
            pieces.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(pieces)
    return await reader.readexactly(int(fields.get("content-length", 0)))


@asynccontextmanager
async def scripted(
    script: Script = complete,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[ScriptedEngine]:
    """Run a scripted engine for as long as the block lasts."""
    engine = ScriptedEngine(host, port, script)
    connected: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(engine._connected(reader, writer))
        connected.add(task)
        task.add_done_callback(connected.discard)

    server = await asyncio.start_server(accept, host, port, limit=1 << 26, ssl=tls)
    engine.port = server.sockets[0].getsockname()[1]
    engine.stop_accepting = server.close
    try:
        yield engine
    finally:
        server.close()
        for task in list(connected):
            task.cancel()
        await asyncio.gather(*connected, return_exceptions=True)
        await server.wait_closed()
