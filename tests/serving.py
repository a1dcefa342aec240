"""Runs the whole sidecar in the test's loop on a loopback socket, and talks to it byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from types import SimpleNamespace
from typing import Any

import uvicorn

from sidecar.app import server_of
from sidecar.observers import Observer
from sidecar.observers.log import ExchangeLog
from sidecar.server.run import listen
from sidecar.settings import load
from tests.leftovers import held, settled

# uvicorn ends a server no sooner than in its next look, a tenth of a second later; hundreds are ended here.
_LOOK_S = 0.002
_asyncio = SimpleNamespace(**vars(asyncio))
_asyncio.sleep = lambda delay_s: asyncio.sleep(min(delay_s, _LOOK_S))
uvicorn.server.asyncio = _asyncio  # type: ignore[attr-defined, assignment]

CHAT = "/v1/chat/completions"
PREFILLER = "x-prefiller-host-port"
SOURCE = "x-kv-cache-source-host-port"
BODY = b'{"model":"m", "messages":[{"role":"user","content":"hi"}],"max_tokens":50,"temperature":0.70}'


@dataclass
class Said:
    """An answer off the wire. whole: it ended as its framing promised. times_s: when each chunk came."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    whole: bool = False
    times_s: list[float] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for key, value in self.headers if key.lower() == name]

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


@dataclass
class Served:
    """A running sidecar."""

    port: int
    server: uvicorn.Server
    stopped: bool = False

    async def stop(self) -> None:
        """What SIGTERM does: close idle connections, let running exchanges finish."""
        if not self.stopped:
            self.stopped = True
            await self.server.shutdown()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A fresh connection to it; aborted at the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def ask(self, request: bytes) -> Said:
        """Send these bytes on a fresh connection and read one answer."""
        async with asyncio.timeout(15), self.connected() as (reader, writer):
            writer.write(request)
            await writer.drain()
            return await read_answer(reader, head_only=request.startswith(b"HEAD "))

    async def post(
        self, path: str = CHAT, body: bytes = BODY, headers: Iterable[tuple[str, str]] = ()
    ) -> Said:
        """POST a JSON body."""
        return await self.ask(post(path, body, headers))


def post(path: str = CHAT, body: bytes = BODY, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """The bytes of a POST."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    head = f"POST {path} HTTP/1.1\r\nhost: sidecar\r\ncontent-type: application/json\r\n{lines}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode("latin-1") + body


async def read_head(reader: asyncio.StreamReader) -> Said:
    """Read the next final answer's head."""
    while True:
        _, status, reason = (await reader.readline()).decode("latin-1").rstrip("\r\n").split(" ", 2)
        headers = []
        while line := (await reader.readline()).decode("latin-1").rstrip("\r\n"):
            name, _, value = line.partition(":")
            headers.append((name, value.strip()))
        if not status.startswith("1") or status == "101":
            return Said(int(status), reason, headers)


async def read_answer(reader: asyncio.StreamReader, *, head_only: bool = False) -> Said:
    """Read one whole answer, or as much of it as comes before the connection ends."""
    said = await read_head(reader)
    fields = {name.lower(): value for name, value in said.headers}
    try:
        if head_only or said.status in (204, 304):
            said.whole = True
        elif fields.get("transfer-encoding") == "chunked":
            await _read_chunks(reader, said)
        elif "content-length" in fields:
            said.body = await reader.readexactly(int(fields["content-length"]))
            said.whole = True
        else:
            said.body = await reader.read()
            said.whole = True
    except asyncio.IncompleteReadError as cut:
        said.body += cut.partial
    except ConnectionError:
        said.whole = False
    return said


async def _read_chunks(reader: asyncio.StreamReader, said: Said) -> None:
    pieces: list[bytes] = []
    try:
        while line := await reader.readline():
            size = int(line, 16)
            if not size:
                said.whole = await reader.readline() == b"\r\n"
                return
            pieces.append(await reader.readexactly(size))
            await reader.readexactly(2)
            said.times_s.append(monotonic())
    finally:
        said.body = b"".join(pieces)


@asynccontextmanager
async def serving(
    engine_port: int, *flags: str, watchers: Sequence[Observer] = (), environ: dict[str, str] | None = None
) -> AsyncIterator[Served]:
    """Run the sidecar before a decoder at `engine_port` for as long as the block lasts.

    Whatever it still holds after its end (a task, a socket, a file) fails the test.
    """
    before = held()
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    plain = () if any("secure" in flag for flag in flags) else ("--secure-serving=false",)
    settings = load(
        [f"--port={port}", f"--model-server-port={engine_port}", *plain, *flags],
        {"POD_IP": "127.0.0.1", **(environ or {})},
    )
    server = server_of(settings, [ExchangeLog(), *watchers])
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup(sockets=[listener])
    served = Served(port, server)
    try:
        yield served
    finally:
        server.config.timeout_graceful_shutdown = 1
        await served.stop()
    await settled(before)
