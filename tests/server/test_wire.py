"""The socket's limits: slow readers, closing with unread input, deadlines."""

import asyncio
import socket
from time import monotonic

import pytest

from sidecar.server import wire
from sidecar.server.client import Client
from tests.server.loopback import direct, get, post, serving, settled

PIECE = bytes(1 << 16)
PIECES = 1024  # 64 MiB
KERNEL_BYTES = 8 << 20
"""More than both kernel buffers of a loopback connection take."""


class Tap:
    """A source that pushes pieces until it is paused, as an engine's stream does."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self.left = PIECES
        self.written_bytes = 0
        self.paused = False
        self.done: asyncio.Future[None] = self._loop.create_future()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._loop.call_soon(self.push)

    def push(self) -> None:
        if self.paused or self.done.done():
            return
        self._client.write(PIECE)
        self.written_bytes += len(PIECE)
        self.left -= 1
        if self.left:
            self._loop.call_soon(self.push)
        else:
            self.done.set_result(None)


async def test_a_client_that_does_not_read_pauses_the_source_and_then_gets_everything() -> None:
    taps: list[Tap] = []

    async def application(client: Client) -> None:
        tap = Tap(client)
        taps.append(tap)
        client.start(200, [], body_length=None)
        client.source = tap
        tap.push()
        await tap.done
        client.finish()

    async with serving(direct(application)) as stage, stage.caller(receive_bytes=65536) as caller:
        await caller.send(get())
        await settled(lambda: taps and taps[0].paused)
        await asyncio.sleep(0.02)
        [connection] = stage.connections
        assert taps[0].paused
        assert taps[0].written_bytes < KERNEL_BYTES
        assert connection.transport.get_write_buffer_size() <= wire.WRITE_HIGH_BYTES + len(PIECE) + 16
        assert (await caller.answer()).body == PIECE * PIECES
        assert (await caller.ask(get())).whole


async def test_an_application_that_drains_is_held_by_a_client_that_does_not_read() -> None:
    written = 0

    async def application(client: Client) -> None:
        nonlocal written
        client.start(200, [], body_length=PIECES * len(PIECE))
        for _ in range(PIECES):
            await client.drain()
            client.write(PIECE)
            written += len(PIECE)
        client.finish()

    async with serving(direct(application)) as stage, stage.caller(receive_bytes=65536) as caller:
        await caller.send(get())
        await settled(lambda: written)
        await asyncio.sleep(0.05)
        assert written < KERNEL_BYTES
        assert (await caller.answer()).body == PIECE * PIECES


async def test_a_source_given_while_the_client_is_slow_is_paused_at_once() -> None:
    paused: list[bool] = []

    async def application(client: Client) -> None:
        client.start(200, [], body_length=None)
        client.write(bytes(KERNEL_BYTES))
        client.source = tap = Tap(client)
        paused.append(tap.paused)
        await client.drain()
        paused.append(tap.paused)
        client.source = None
        client.finish()

    async with serving(direct(application)) as stage, stage.caller(receive_bytes=65536) as caller:
        await caller.send(get())
        await settled(lambda: paused)
        await caller.answer()
    assert paused == [True, False]


async def test_a_client_that_leaves_while_it_is_slow_frees_who_waits_for_it() -> None:
    async def application(client: Client) -> None:
        client.start(200, [], body_length=None)
        while True:
            client.write(PIECE)
            await client.drain()

    async with serving(direct(application)) as stage, stage.caller(receive_bytes=65536) as caller:
        await caller.send(get())
        await settled(lambda: any(connection.writing_paused for connection in stage.connections))
        caller.abort()
        begun_s = monotonic()
        await settled(lambda: not stage.server.server_state.tasks)
        assert monotonic() - begun_s < 0.1


async def _answer_early(client: Client) -> None:
    client.start(200, [], body_length=len(PIECE))
    client.write(PIECE)
    client.finish()


UPLOAD = post(b"").replace(b"Length: 0", b"Length: 100000000")


async def test_a_closing_connection_waits_for_the_client_to_end() -> None:
    async with serving(direct(_answer_early)) as stage, stage.caller() as caller:
        assert (await caller.ask(UPLOAD + PIECE)).body == PIECE
        assert await caller.closed()  # its side has ended, while ours can still send
        await caller.send(PIECE)
        await asyncio.sleep(0.01)
        assert len(stage.connections) == 1
        caller.half_close()
        begun_s = monotonic()
        await settled(lambda: not stage.connections)
        assert monotonic() - begun_s < 0.1


async def test_a_closing_connection_does_not_wait_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LINGER_S", 0.05)
    async with serving(direct(_answer_early)) as stage, stage.caller() as caller:
        assert (await caller.ask(UPLOAD)).body == PIECE
        begun_s = monotonic()
        await settled(lambda: not stage.connections)
        assert 0.03 < monotonic() - begun_s < 3


async def test_a_closing_connection_throws_away_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LINGER_S", 0.2)
    async with serving(direct(_answer_early)) as stage, stage.caller() as caller:
        assert (await caller.ask(UPLOAD)).body == PIECE
        sending = asyncio.create_task(caller.send(bytes(60_000_000)))
        [connection] = stage.connections
        await settled(lambda: connection._discarded_bytes > wire.LINGER_BYTES)
        await asyncio.sleep(0.02)
        assert connection._discarded_bytes < wire.LINGER_BYTES + (1 << 19)
        assert not sending.done()
        caller.abort()
        sending.cancel()


async def test_a_silent_client_is_asked_whether_it_is_there() -> None:
    async with serving(direct(_answer_early)) as stage, stage.caller() as caller:
        await caller.ask(get())
        [connection] = stage.connections
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 15
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 9


async def test_a_deadline_moves_and_can_be_taken_back() -> None:
    async with serving(direct(_answer_early)) as stage, stage.caller() as caller:
        await caller.ask(get())
        [connection] = stage.connections
        connection.set_deadline(0.02)
        connection.set_deadline(0.06)
        await asyncio.sleep(0.04)
        assert not connection.transport.is_closing()
        connection.set_deadline(None)
        await asyncio.sleep(0.04)
        assert not connection.transport.is_closing()
        connection.set_deadline(0.01)
        assert await caller.closed()
