"""A connection's life: requests one after the other, clients that leave, and the server's end."""

import asyncio
import contextlib
import contextvars
import logging
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic

import pytest

from sidecar.server import protocol, wire
from sidecar.server.client import Client
from sidecar.server.limits import ClientLimits
from sidecar.server.tls import serving_context
from tests.server.loopback import Caller, Stage, chunked, direct, get, post, serving, settled

GONE_WITHIN_S = 0.1
"""Seconds within which a client's leaving must have reached the request's task (the issue, 5)."""


async def echo(client: Client) -> None:
    """Answers with target and body."""
    body = await client.read_body(1 << 20)
    content = client.method + b" " + client.target + b" " + body
    client.start(200, [(b"X-Version", client.http_version.encode())], body_length=len(content))
    client.write(content)
    client.finish()


async def test_pipelined_requests_are_answered_in_order_with_their_own_bodies() -> None:
    wire = post(b"one", target="/1") + get("/2")
    wire += b"POST /3 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"th", b"ree")
    wire += post(b"four", target="/4")
    async with serving(direct(echo)) as stage, stage.caller() as caller:
        await caller.send(wire)
        bodies = [(await caller.answer()).body for _ in range(4)]
    assert bodies == [b"POST /1 one", b"GET /2 ", b"POST /3 three", b"POST /4 four"]


async def test_a_pipelined_request_waits_for_the_answer_before_it() -> None:
    running: list[bytes] = []
    gate = asyncio.Event()

    async def application(client: Client) -> None:
        running.append(client.target)
        await gate.wait()
        await echo(client)

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(get("/1") + post(b"", target="/2")[:-2])
        await settled(lambda: running)
        await caller.send(b"\r\n" + get("/3"))
        await asyncio.sleep(0.01)
        assert running == [b"/1"]
        gate.set()
        assert [(await caller.answer()).body for _ in range(3)] == [b"GET /1 ", b"POST /2 ", b"GET /3 "]


async def test_a_request_arrives_whole_wherever_it_is_split() -> None:
    trailing = chunked(b"hello ", b"world", trailers=b"X-T: 1\r\n")
    wire = b"POST /p?q HTTP/1.1\r\nhost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + trailing
    async with serving(direct(echo)) as stage, stage.caller() as caller:
        for cut in range(1, len(wire)):
            await caller.send(wire[:cut])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await caller.send(wire[cut:])
            assert (await caller.answer()).body == b"POST /p?q hello world"


async def test_a_request_arrives_whole_byte_by_byte() -> None:
    async with serving(direct(echo)) as stage, stage.caller() as caller:
        for byte in post(b"hello", target="/x") + get("/y"):
            await caller.send(bytes([byte]))
            await asyncio.sleep(0)
        assert [(await caller.answer()).body for _ in range(2)] == [b"POST /x hello", b"GET /y "]


async def test_a_connection_is_kept_between_requests_and_closed_when_the_client_says_so() -> None:
    async with serving(direct(echo)) as stage, stage.caller() as caller:
        for _ in range(3):
            answer = await caller.ask(get())
            assert answer.get(b"connection") is None
        assert len(stage.connections) == 1
        assert (await caller.ask(get("/", "Connection: x, Close"))).closes
        assert await caller.closed()


async def test_nothing_behind_a_request_that_closes_is_served() -> None:
    async with serving(direct(echo)) as stage, stage.caller() as caller:
        await caller.send(get("/1", "Connection: close") + get("/2"))
        assert (await caller.answer()).body == b"GET /1 "
        assert await caller.closed()
        await caller.send(get("/3"))  # which must not reset a connection whose answer may still be on its way
        await asyncio.sleep(0.01)
        assert len(stage.connections) == 1
        caller.half_close()
        await settled(lambda: not stage.connections, 0.1)


async def test_an_http_1_0_client_gets_a_length_and_the_end() -> None:
    async with serving(direct(echo)) as stage, stage.caller() as caller:
        answer = await caller.ask(b"GET /old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert (answer.body, answer.closes, answer.get(b"x-version")) == (b"GET /old ", True, b"1.0")
        assert await caller.closed()


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    async with (
        serving(direct(echo), keep_alive_s=0.05) as stage,
        stage.caller() as caller,
        stage.caller() as silent,
    ):
        begun_s = monotonic()
        await caller.ask(get())
        await asyncio.sleep(0.03)
        await caller.ask(get())
        assert await caller.closed()
        assert 0.07 < monotonic() - begun_s < 3
        assert await silent.closed()


HURRIED = ClientLimits(header_timeout_s=0.05)


async def test_a_head_that_takes_too_long_is_refused_slow_progress_or_not() -> None:

    async def dribble(caller: Caller) -> None:
        for byte in b"GET / HTTP/1.1\r\nX: " + bytes(1000).replace(b"\0", b"x"):
            await caller.send(bytes([byte]))
            await asyncio.sleep(0.005)

    async with serving(direct(echo), limits=HURRIED) as stage, stage.caller() as caller:
        await caller.ask(get())
        begun_s = monotonic()
        dribbling = asyncio.create_task(dribble(caller))
        refused = await caller.answer()
        assert (refused.status, refused.whole, monotonic() - begun_s < 3) == (408, True, True)
        assert b'"message":"no whole request head within 0.05 s"' in refused.body
        with contextlib.suppress(ConnectionError):
            await dribbling


async def test_the_time_for_a_head_does_not_run_while_the_answer_before_it_does() -> None:
    gate = asyncio.Event()

    async def application(client: Client) -> None:
        await gate.wait()
        await echo(client)

    async with serving(direct(application), limits=HURRIED) as stage, stage.caller() as caller:
        await caller.send(get("/1") + b"GET /2 HT")
        await asyncio.sleep(0.1)
        gate.set()
        assert (await caller.answer()).body == b"GET /1 "
        await caller.send(b"TP/1.1\r\nHost: a\r\n\r\n")
        assert (await caller.answer()).body == b"GET /2 "
        await caller.send(get("/1") + b"GET /2 HT")
        await caller.answer()
        assert (await caller.answer()).status == 408


async def _wait(client: Client) -> None:
    await asyncio.Event().wait()


async def _read(client: Client) -> None:
    await client.read_body(1 << 20)


async def _stream(client: Client) -> None:
    async for _ in client.stream_body():
        pass


async def _speak(client: Client) -> None:
    client.start(200, [], body_length=None)
    client.write(b"data")
    await asyncio.Event().wait()


PARTIAL = post(b"abc")[:-1]


@pytest.mark.parametrize("leave", [Caller.half_close, Caller.abort, lambda caller: caller.sock.close()])
@pytest.mark.parametrize(
    ("serve", "wire"),
    [(_wait, get()), (_read, PARTIAL), (_stream, PARTIAL), (_speak, get()), (_speak, PARTIAL)],
)
async def test_a_client_that_leaves_cancels_its_request_within_100_ms(
    serve: Callable[[Client], Awaitable[None]], wire: bytes, leave: Callable[[Caller], None]
) -> None:
    started = asyncio.Event()
    ended_s: list[float] = []

    async def application(client: Client) -> None:
        started.set()
        try:
            await serve(client)
        except asyncio.CancelledError:
            ended_s.append(monotonic())
            client.write(b"nobody reads this")
            client.finish()
            raise

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(wire)
        await started.wait()
        await asyncio.sleep(0.005)
        begun_s = monotonic()
        leave(caller)
        await settled(lambda: ended_s and not stage.connections)
        assert ended_s[0] - begun_s < GONE_WITHIN_S


UPLOAD = post(b"").replace(b"Length: 0", b"Length: 50000000")
SENT = 400_000
"""Bytes sent after the head: more than is taken, and few enough for the kernel to take a FIN behind them."""
UNREAD = [(_wait, UPLOAD), (_speak, UPLOAD), (_wait, get()), (_speak, get())]
"""Requests whose client is soon not read any more: nobody takes the body, or too much follows the request."""


@asynccontextmanager
async def left_alone(
    serve: Callable[[Client], Awaitable[None]], context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Stage, Callable[[], Awaitable[None]]]]:
    """A server, and what waits until its client is not read; then that client must be noticed to leave."""
    ended_s: list[float] = []
    begun_s = 0.0

    async def application(client: Client) -> None:
        try:
            await serve(client)
        except asyncio.CancelledError:
            ended_s.append(monotonic())
            raise

    async with serving(direct(application), context=context) as stage:

        async def unread() -> None:
            nonlocal begun_s
            await settled(lambda: any(each._reading_paused for each in stage.connections))
            await asyncio.sleep(2.2 * wire.LOOK_S)
            assert not ended_s
            begun_s = monotonic()

        yield stage, unread
        await settled(lambda: ended_s and not stage.connections)
        assert ended_s[0] - begun_s < GONE_WITHIN_S


@pytest.mark.parametrize("leave", [Caller.half_close, Caller.abort, lambda caller: caller.sock.close()])
@pytest.mark.parametrize(("serve", "request_head"), UNREAD)
async def test_a_client_that_leaves_while_it_is_not_read_cancels_its_request(
    serve: Callable[[Client], Awaitable[None]], request_head: bytes, leave: Callable[[Caller], None]
) -> None:
    async with left_alone(serve) as (stage, unread), stage.caller() as caller:
        await caller.send(request_head, bytes(SENT))
        await unread()
        if serve is _speak:
            await caller.until(b"data")
        leave(caller)


@pytest.mark.parametrize(("serve", "request_head"), UNREAD)
async def test_a_blocked_client_that_resets_cancels_its_request(
    serve: Callable[[Client], Awaitable[None]], request_head: bytes
) -> None:
    async with left_alone(serve) as (stage, unread), stage.caller() as caller:
        await caller.send(request_head)
        sending = asyncio.create_task(caller.send(bytes(50_000_000)))
        await unread()
        assert not sending.done()
        sending.cancel()
        caller.abort()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("request_head", [UPLOAD, get()])
async def test_a_client_over_tls_that_leaves_while_it_is_not_read_cancels_its_request(
    request_head: bytes, reset: bool
) -> None:
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    async with left_alone(_wait, serving_context(None, "VersionTLS13", [], None)) as (stage, unread):
        _, writer = await asyncio.open_connection("127.0.0.1", stage.port, ssl=trusting)
        writer.write(request_head + bytes(SENT))
        await unread()
        if reset:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


async def test_a_client_that_stays_is_not_given_up_while_it_is_not_read() -> None:
    gate = asyncio.Event()

    async def application(client: Client) -> None:
        await gate.wait()
        await echo(client)

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(post(bytes(1_000_000)))
        await settled(lambda: any(each._reading_paused for each in stage.connections))
        await asyncio.sleep(2.2 * wire.LOOK_S)
        gate.set()
        assert (await caller.answer()).body == b"POST / " + bytes(1_000_000)
        [connection] = stage.connections
        assert connection._look_timer is None


async def test_a_client_that_half_closes_in_an_answer_without_length_sees_a_reset() -> None:
    async with serving(direct(_speak)) as stage, stage.caller() as caller:
        await caller.send(b"GET / HTTP/1.0\r\n\r\n")
        await caller.until(b"data")
        caller.half_close()
        assert await caller.reset()


async def test_a_task_that_outlives_its_answer_is_not_cancelled_with_the_client() -> None:
    gate = asyncio.Event()
    finished: list[bytes] = []

    async def application(client: Client) -> None:
        await echo(client)
        await gate.wait()
        finished.append(client.target)

    async with serving(direct(application)) as stage:
        async with stage.caller() as caller:
            assert (await caller.ask(get("/1"))).status == 200
            assert (await caller.ask(get("/2"))).status == 200
        await settled(lambda: not stage.connections)
        gate.set()
    assert finished == [b"/1", b"/2"]


async def test_a_client_that_sends_ahead_without_end_is_held() -> None:
    gate = asyncio.Event()

    async def application(client: Client) -> None:
        if client.target == b"/first":
            await gate.wait()
        await echo(client)

    count = 200_000
    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(get("/first"))
        sending = asyncio.create_task(caller.send(get("/") * count))
        await asyncio.sleep(0.05)
        [connection] = stage.connections
        assert connection._ahead_bytes <= protocol.SENT_AHEAD_BYTES + (1 << 18)
        assert not sending.done()
        sending.cancel()
        gate.set()
        assert [(await caller.answer()).body for _ in range(100)] == [b"GET /first "] + [b"GET / "] * 99


async def test_what_waited_behind_a_paused_connection_is_served_to_the_last() -> None:
    gate = asyncio.Event()

    async def application(client: Client) -> None:
        await gate.wait()
        await echo(client)

    wire = get("/") * 5000 + post(bytes(300_000), target="/last")
    async with (
        serving(direct(application)) as stage,
        stage.caller() as caller,
        asyncio.TaskGroup() as sending,
    ):
        sending.create_task(caller.send(wire))
        await asyncio.sleep(0.02)
        gate.set()
        answers = [await caller.answer() for _ in range(5001)]
    assert {answer.body for answer in answers[:-1]} == {b"GET / "}
    assert answers[-1].body == b"POST /last " + bytes(300_000)


async def test_an_application_that_raises_becomes_a_500_without_details(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def application(client: Client) -> None:
        raise KeyError("secret")

    async with serving(direct(application)) as stage, stage.caller() as caller:
        answer = await caller.ask(get("/here"))
        assert await caller.closed()
    assert (answer.status, answer.get(b"x-sidecar-error"), answer.closes) == (500, b"500", True)
    assert b'"type":"InternalServerError"' in answer.body
    assert b"secret" not in answer.body
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "/here" in record.getMessage()
    assert record.exc_info is not None


async def test_an_application_that_forgets_to_answer_becomes_a_500(caplog: pytest.LogCaptureFixture) -> None:
    async def application(client: Client) -> None:
        pass

    async with serving(direct(application)) as stage, stage.caller() as caller:
        assert (await caller.ask(post(b"x"))).status == 500
        assert await caller.closed()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_an_application_that_stops_in_its_answer_is_seen_as_a_cut(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def application(client: Client) -> None:
        client.start(200, [], body_length=None)
        client.write(b"data")
        raise ValueError

    async with serving(direct(application)) as stage, stage.caller() as caller:
        answer = await caller.ask(get())
    assert (answer.status, answer.body, answer.whole) == (200, b"data", False)
    assert len(caplog.records) == 1


async def test_each_request_starts_from_the_connection_s_own_context() -> None:
    seen: list[str] = []
    name = contextvars.ContextVar("name", default="none")

    async def application(client: Client) -> None:
        seen.append(name.get())
        name.set("leaked")
        await echo(client)

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(get() * 3)
        for _ in range(3):
            await caller.answer()
    assert seen == ["none"] * 3


async def test_shutdown_closes_the_idle_and_lets_the_running_finish_with_connection_close() -> None:
    gate = asyncio.Event()
    running = asyncio.Event()

    async def application(client: Client) -> None:
        running.set()
        await gate.wait()
        await echo(client)

    async with (
        serving(direct(application)) as stage,
        stage.caller() as idle,
        stage.caller() as half,
        stage.caller() as busy,
    ):
        await half.send(b"GET / HT")
        await busy.send(get("/1") + get("/2"))
        await running.wait()
        stopping = asyncio.create_task(stage.server.shutdown())
        assert await idle.closed()
        assert await half.closed()
        gate.set()
        answer = await busy.answer()
        assert (answer.body, answer.closes) == (b"GET /1 ", True)
        assert await busy.closed()
        busy.sock.close()
        await stopping
    assert stage.server.server_state.total_requests == 1


async def test_a_task_that_outlasts_the_grace_is_cancelled_and_the_client_told() -> None:
    async with serving(direct(_wait)) as stage, stage.caller() as caller:
        await caller.send(get())
        await settled(lambda: stage.server.server_state.tasks)
        stage.server.config.timeout_graceful_shutdown = 0
        await stage.server.shutdown()
        assert (await caller.answer()).status == 500
        assert await caller.closed()
