"""WebSockets are tunnelled to the decoder, both ways, byte for byte."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

import pytest

from tests.engines import Answer, Got, scripted
from tests.serving import SOURCE, read_head, serving
from tests.test_answers import closed_port

HANDSHAKE = (
    b"GET /v1/realtime?model=m HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    + SOURCE.encode()
    + b": 127.0.0.1:1\r\n\r\n"
)
AGREED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


@asynccontextmanager
async def engine(answer: bytes, *, ends: bool = False) -> AsyncIterator[tuple[int, list[bytes]]]:
    """An engine that answers a handshake so, and then echoes or `ends`; its port and the heads it got."""
    heads: list[bytes] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        while not ends and (piece := await reader.read(65536)):
            writer.write(piece)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], heads
    finally:
        server.close()
        await server.wait_closed()


async def test_bytes_go_both_ways_after_the_handshake() -> None:
    async with (
        engine(AGREED) as (port, heads),
        serving(port) as sidecar,
        sidecar.connected() as (reader, writer),
    ):
        writer.write(HANDSHAKE)
        said = await read_head(reader)
        for size in (1, 1000, 300_000):
            writer.write(bytes(range(256)) * size)
            echoed = await reader.readexactly(256 * size)
            assert echoed == bytes(range(256)) * size

        assert said.status == 101
        assert heads == [
            b"GET /v1/realtime?model=m HTTP/1.1\r\nHost: localhost:%d\r\nConnection: Upgrade\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            b"Sec-WebSocket-Version: 13\r\n\r\n" % port
        ]


async def test_a_refused_handshake_is_relayed() -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"
    async with engine(refusal) as (port, _), serving(port) as sidecar:
        answer = await sidecar.ask(HANDSHAKE)

        assert (answer.status, answer.body) == (403, b"no")


async def test_an_engine_that_is_down_is_a_503() -> None:
    async with serving(closed_port()) as sidecar:
        answer = await sidecar.ask(HANDSHAKE)

        assert (answer.status, answer.json["code"]) == (503, 503)


@pytest.mark.parametrize(
    "said", [b"", AGREED[:40], b"HTTP/1.1 103 Early Hints\r\n\r\n", b"SSH-2.0-OpenSSH\r\n"]
)
async def test_an_engine_that_dies_before_its_answer_is_a_502(said: bytes) -> None:
    async with engine(said, ends=True) as (port, _), serving(port) as sidecar:
        answer = await sidecar.ask(HANDSHAKE)

        assert (answer.status, answer.json["code"], answer.json["type"]) == (502, 502, "BadGateway")
        assert answer.all("x-sidecar-error") == ["502"]
        message = "the decode engine ended the connection before its answer was complete"
        assert answer.json["message"] == message


async def test_a_client_that_leaves_before_the_101_ends_the_engine_s_connection() -> None:
    async def never(got: Got, answer: Answer) -> None:
        await asyncio.sleep(30)

    async with scripted(never) as decoder, serving(decoder.port) as sidecar:
        async with sidecar.connected() as (_, writer):
            writer.write(HANDSHAKE + bytes(200_000))
            got = await decoder.came()
            await asyncio.sleep(0.02)
            left_s = monotonic()
        async with asyncio.timeout(2):
            await got.closed.wait()
        assert got.closed_s is not None
        assert got.closed_s - left_s < 0.1


@pytest.mark.parametrize("end", ["client", "grace"])
async def test_a_session_is_told_with_its_status_and_who_ended_it(
    end: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with (
            engine(AGREED) as (port, _),
            serving(port) as sidecar,
            sidecar.connected() as (reader, writer),
        ):
            writer.write(HANDSHAKE)
            await read_head(reader)
            if end == "grace":
                sidecar.server.config.timeout_graceful_shutdown = 0
                await sidecar.stop()
                assert await reader.read() == b""
    [told] = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "exchange"]
    assert (told["status"], [leg["status"] for leg in told["legs"]]) == (101, [101])
    said = {
        "client": (None, None),
        "grace": ("the sidecar is shutting down", "ServiceUnavailable"),
    }[end]
    assert (told.get("detail"), told.get("error")) == said


async def test_a_refused_session_is_told_with_the_engines_status(caplog: pytest.LogCaptureFixture) -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"
    with caplog.at_level(logging.INFO):
        async with engine(refusal) as (port, _), serving(port) as sidecar:
            await sidecar.ask(HANDSHAKE)
    [told] = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "exchange"]
    assert (told["status"], told.get("error")) == (403, None)
