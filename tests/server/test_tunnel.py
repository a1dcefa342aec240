"""WebSocket tunnels: both ways, at their own pace, and only once the engine has agreed."""

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic

import pytest

from sidecar.server.client import Client
from sidecar.server.protocol import SENT_AHEAD_BYTES
from sidecar.server.tls import serving_context
from sidecar.server.tunnel import ANSWER_HEAD_BYTES, EngineGone, Upstream, tunnel
from tests.server.loopback import Caller, Stage, direct, get, serving, settled

HANDSHAKE = get("/v1/realtime?model=m", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: a")
HEAD = (
    b"GET /v1/realtime?model=m HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
)
SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Raw: \xff\r\n\r\n"
)
KERNEL_BYTES = 8 << 20
"""More than both kernel buffers of a loopback connection take."""

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def tunnelled(script: Script, *, context: ssl.SSLContext | None = None) -> AsyncIterator[Stage]:
    """A server whose every request is a tunnel to an engine that plays `script` after reading the head.

    An engine that is gone before it has answered becomes an empty 502.
    """
    heads: list[bytes] = []

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the tunnel's end is what the tests look at
        finally:
            writer.close()

    engine = await asyncio.start_server(play, "127.0.0.1", 0, ssl=context)
    trusting = None
    if context is not None:
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname = False
        trusting.verify_mode = ssl.CERT_NONE
    upstream = Upstream("127.0.0.1", engine.sockets[0].getsockname()[1], trusting)

    async def application(client: Client) -> None:
        assert client.tunnel_requested
        try:
            await tunnel(client, upstream, HEAD, lambda status: None)
        except EngineGone:
            client.start(502, [], body_length=0)
            client.finish()

    try:
        async with serving(direct(application)) as stage:
            yield stage
    finally:
        engine.close()
        await engine.wait_closed()
    assert set(heads) == {HEAD}


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Agrees, and sends everything back."""
    writer.write(SWITCH)
    while piece := await reader.read(1 << 16):
        writer.write(b"<" + piece + b">")
        await writer.drain()
    writer.write(b"end")


async def test_bytes_pass_both_ways_and_a_half_close_too() -> None:
    async with tunnelled(echo) as stage, stage.caller() as caller:
        await caller.send(HANDSHAKE)
        assert await caller.exactly(len(SWITCH)) == SWITCH
        await caller.send(b"\x81\x00\xff")
        assert await caller.exactly(5) == b"<\x81\x00\xff>"
        await caller.send(get("/not-a-request"))
        assert (await caller.until(b">")).startswith(b"<GET /not-a-request")
        caller.half_close()
        assert await caller.rest() == b"end"
    assert stage.connections == set()


async def test_an_engine_over_tls_is_tunnelled_to() -> None:
    context = serving_context(None, "VersionTLS13", [], None)
    async with tunnelled(echo, context=context) as stage, stage.caller() as caller:
        await caller.send(HANDSHAKE)
        assert await caller.exactly(len(SWITCH)) == SWITCH
        await caller.send(b"abc")
        assert await caller.exactly(5) == b"<abc>"
        caller.half_close()  # which TLS cannot pass on: the tunnel ends
        await caller.rest()


async def test_what_the_client_sends_early_reaches_the_engine_only_after_its_101() -> None:
    early: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.03)
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" + SWITCH[:20])
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.write(SWITCH[20:] + b"hello")
        early.append(await reader.readexactly(6))

    async with tunnelled(script) as stage, stage.caller() as caller:
        await caller.send(HANDSHAKE + b"abc")
        await asyncio.sleep(0.01)
        await caller.send(b"def")
        assert await caller.rest() == b"HTTP/1.1 103 Early Hints\r\n\r\n" + SWITCH + b"hello"
    assert early == [b"abcdef"]


async def test_a_client_that_sends_too_much_early_is_held_until_the_101() -> None:
    gate = asyncio.Event()
    size = 20_000_000

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        writer.write(SWITCH)
        assert await reader.readexactly(size) == bytes(size)
        writer.write(b"got it")

    async with tunnelled(script) as stage, stage.caller() as caller:
        await caller.send(HANDSHAKE)
        sending = asyncio.create_task(caller.send(bytes(size)))
        await asyncio.sleep(0.05)
        assert not sending.done()
        assert size > KERNEL_BYTES + SENT_AHEAD_BYTES
        gate.set()
        assert await caller.rest() == SWITCH + b"got it"
        await sending


REFUSAL = b"HTTP/1.1 403 Forbidden\r\nX-raw: \xff\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nno"


@pytest.mark.parametrize(
    "refusal",
    [
        REFUSAL,
        b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
        b"HTTP/1.1 426 Required\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_a_refusal_is_relayed_as_it_is_and_no_request_can_follow_it(refusal: bytes) -> None:
    leaked: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in refusal:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        leaked.append(await reader.read())

    async with tunnelled(script) as stage, stage.caller() as caller:
        await caller.send(HANDSHAKE + get("/smuggled"))
        assert await caller.rest() == refusal
        await settled(lambda: leaked)
    assert leaked == [b""]


async def test_a_refusal_that_ends_with_the_connection_is_relayed() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 503 Busy\r\n\r\nlater")

    async with tunnelled(script) as stage, stage.caller() as caller:
        await caller.send(HANDSHAKE)
        assert await caller.rest() == b"HTTP/1.0 503 Busy\r\n\r\nlater"


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("said", [b"", SWITCH[:-2], b"HTTP/1.1 103 Early Hints\r\n\r\n"])
async def test_an_engine_that_ends_before_its_answer_leaves_the_client_to_be_answered(
    said: bytes, reset: bool, tls: bool
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await asyncio.sleep(0.01)
        if reset:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    context = serving_context(None, "VersionTLS13", [], None) if tls else None
    async with tunnelled(script, context=context) as stage, stage.caller() as caller:
        answer = await caller.ask(HANDSHAKE + b"early")
        assert (answer.status, answer.closes) == (502, True)
        assert await caller.closed()
        caller.sock.close()


@pytest.mark.parametrize(
    "junk",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\njunk",
        b"HTTP/1.1 101 Switching Protocols\r\nX-Long: " + bytes(ANSWER_HEAD_BYTES).replace(b"\0", b"x"),
    ],
)
async def test_an_engine_that_answers_no_http_is_left_and_the_client_answered(junk: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(junk)
        assert await reader.read() == b""

    async with tunnelled(script) as stage, stage.caller() as caller:
        assert (await caller.ask(HANDSHAKE)).status == 502
        assert await caller.closed()


async def test_bytes_that_come_with_the_101_reach_a_slow_client_whole_although_the_engine_ends() -> None:
    data = bytes(range(256)) * 40_000
    sent: list[int] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCH + data)
        await writer.drain()
        sent.append(len(data))

    async with tunnelled(script) as stage, stage.caller(receive_bytes=65536) as caller:
        await caller.send(HANDSHAKE)
        await asyncio.sleep(0.03)
        assert await caller.rest() == SWITCH + data
    assert sent


async def test_what_a_client_sends_while_it_is_refused_is_dropped() -> None:
    leaked: list[bytes] = []
    gate = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(REFUSAL[:-1])
        await gate.wait()
        writer.write(REFUSAL[-1:])
        leaked.append(await reader.read())

    async with tunnelled(script) as stage, stage.caller() as caller:
        await caller.send(HANDSHAKE)
        assert await caller.exactly(len(REFUSAL) - 1) == REFUSAL[:-1]
        await caller.send(get("/smuggled"))
        await asyncio.sleep(0.01)
        gate.set()
        assert await caller.rest() == REFUSAL[-1:]
        await settled(lambda: leaked)
    assert leaked == [b""]


async def test_a_client_that_does_not_read_holds_the_engine() -> None:
    sent = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(SWITCH)
        for _ in range(1024):
            writer.write(bytes(1 << 16))
            await writer.drain()
            sent += 1 << 16

    async with tunnelled(script) as stage, stage.caller(receive_bytes=65536) as caller:
        await caller.send(HANDSHAKE)
        await settled(lambda: sent)
        await asyncio.sleep(0.05)
        assert sent < 2 * KERNEL_BYTES
        assert len(await caller.rest()) == len(SWITCH) + (1 << 26)


async def test_an_engine_that_does_not_read_holds_the_client() -> None:
    gate = asyncio.Event()
    size = 40_000_000

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCH)
        await gate.wait()
        received = 0
        while received < size:
            received += len(await reader.read(1 << 20))
        writer.write(b"all")

    async with tunnelled(script) as stage, stage.caller() as caller:
        await caller.send(HANDSHAKE)
        await caller.exactly(len(SWITCH))
        sending = asyncio.create_task(caller.send(bytes(size)))
        await asyncio.sleep(0.05)
        assert not sending.done()
        gate.set()
        assert await caller.rest() == b"all"
        await sending


@pytest.mark.parametrize("agreed", [True, False])
@pytest.mark.parametrize("leave", [Caller.abort, lambda caller: caller.sock.close()])
async def test_a_client_that_leaves_ends_the_engine_s_connection_at_once(
    agreed: bool, leave: Callable[[Caller], None]
) -> None:
    ended_s: list[float] = []
    waiting = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if agreed:
            writer.write(SWITCH)
        waiting.set()
        try:
            await reader.read()
        finally:
            ended_s.append(monotonic())

    async with tunnelled(script) as stage, stage.caller() as caller:
        await caller.send(HANDSHAKE)
        await waiting.wait()
        if agreed:
            await caller.exactly(len(SWITCH))
        begun_s = monotonic()
        leave(caller)
        await settled(lambda: ended_s)
        assert ended_s[0] - begun_s < 0.1


async def test_a_client_that_half_closes_before_the_101_is_gone() -> None:
    waiting = asyncio.Event()
    left = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting.set()
        await left.wait()

    async with tunnelled(script) as stage, stage.caller() as caller:
        await caller.send(HANDSHAKE)
        await waiting.wait()
        caller.half_close()
        begun_s = monotonic()
        await settled(lambda: not stage.server.server_state.tasks)
        assert monotonic() - begun_s < 0.1
        left.set()


async def test_a_client_that_leaves_while_the_engine_is_connected_to_cancels_that() -> None:
    with socket.socket() as listener:  # with a full backlog, which makes connecting hang
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        upstream = Upstream("127.0.0.1", listener.getsockname()[1])

        async def application(client: Client) -> None:
            await tunnel(client, upstream, HEAD, lambda status: None)

        async with serving(direct(application)) as stage, stage.caller() as caller:
            await caller.send(HANDSHAKE)
            await settled(lambda: stage.server.server_state.tasks)
            await asyncio.sleep(0.01)
            caller.sock.close()
            begun_s = monotonic()
            await settled(lambda: not stage.server.server_state.tasks)
            assert monotonic() - begun_s < 0.1
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize("hangs", [True, False])
async def test_an_engine_that_cannot_be_reached_leaves_the_client_to_be_answered(hangs: bool) -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    if hangs:
        listener.listen(5)  # and no TLS handshake
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    upstream = Upstream("127.0.0.1", listener.getsockname()[1], trusting, connect_timeout_s=0.03)

    async def application(client: Client) -> None:
        with pytest.raises(TimeoutError if hangs else ConnectionRefusedError):
            await tunnel(client, upstream, HEAD, lambda status: None)
        client.start(503, [], body_length=0)
        client.finish()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        answer = await caller.ask(HANDSHAKE + b"early")
        assert (answer.status, answer.closes) == (503, True)
        assert await caller.closed()
        caller.sock.close()
    listener.close()


async def test_a_tunnel_that_is_cancelled_aborts_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    ended = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCH)
        try:
            await reader.read()
        finally:
            ended.set()

    async with tunnelled(script) as stage, stage.caller() as caller:
        await caller.send(HANDSHAKE)
        await caller.exactly(len(SWITCH))
        stage.server.config.timeout_graceful_shutdown = 0
        await stage.server.shutdown()
        assert await caller.closed()
        await asyncio.wait_for(ended.wait(), 0.1)
    assert [record for record in caplog.records if record.levelno > logging.ERROR] == []


async def test_a_tunnel_waits_for_the_answer_before_it_in_the_pipeline() -> None:
    async with tunnelled(echo) as stage, stage.caller() as caller:
        await caller.send(HANDSHAKE + b"abc")
        assert await caller.exactly(len(SWITCH) + 5) == SWITCH + b"<abc>"
        caller.half_close()
        await caller.rest()

    async def application(client: Client) -> None:
        client.start(200, [], body_length=1)
        client.write(b"t" if client.tunnel_requested else b"p")
        client.finish()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(get() + HANDSHAKE + get("/smuggled"))
        assert [(await caller.answer()).body for _ in range(2)] == [b"p", b"t"]
        assert await caller.closed()
        caller.sock.close()
