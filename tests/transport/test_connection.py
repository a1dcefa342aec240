"""The socket: its options, back-pressure when writing, and requests that never left whole."""

import asyncio
import gc
import socket

import httpx
import pytest

from sidecar.transport import Transport
from sidecar.transport.connection import Connection
from tests.transport.hostile import OK, Hostile, Peer, body_of, serve_ok


async def test_the_socket_sends_at_once_and_probes_a_silent_engine() -> None:
    async with Hostile(serve_ok) as engine:
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: Connection(1, 65_536, lambda idle: None, lambda lost: None), "127.0.0.1", engine.port
        )
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 15
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 9
        transport.abort()


async def test_a_large_body_arrives_whole(transport: Transport) -> None:
    body = bytes(range(256)) * 20_000
    async with Hostile(serve_ok) as engine:
        for _ in range(2):
            assert await body_of(await transport.handle_async_request(engine.post(body))) == b"ok"
        assert [request.partition(b"\r\n\r\n")[2] == body for request in engine.peers[0].requests] == [
            True,
            True,
        ]


async def test_an_answer_before_the_whole_request_is_delivered_and_the_connection_not_reused(
    transport: Transport,
) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(OK)
        await peer.ended.wait()

    async with Hostile(script, buffer_bytes=65_536) as engine:
        # More than the kernel takes, so some of it is still ours when the answer is complete.
        response = await transport.handle_async_request(engine.post(b"x" * 20_000_000))
        assert await body_of(response) == b"ok"
        assert await engine.peers[0].gone() < 20_000_000
        response = await transport.handle_async_request(engine.post())
        assert not response.extensions["reused"]
        await body_of(response)


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_an_engine_that_accepts_and_hangs_up_is_an_error_not_a_hang(
    transport: Transport, end: str
) -> None:
    async def script(peer: Peer) -> None:
        await (peer.close() if end == "close" else peer.reset())

    async with Hostile(script) as engine:
        for _ in range(20):
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)):
                await transport.handle_async_request(engine.post())
        assert len(engine.peers) == 20


async def test_an_engine_that_speaks_first_is_an_error(transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"220 mail.example ESMTP\r\n")
        await peer.gone()

    async with Hostile(script) as engine:
        with pytest.raises(httpx.RemoteProtocolError):
            await transport.handle_async_request(engine.post())


async def test_a_half_closed_engine_that_does_not_read_is_an_error_although_bytes_are_unsent(
    transport: Transport,
) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.writer.write_eof()
        await peer.ended.wait()

    async with Hostile(script, buffer_bytes=65_536) as engine:
        with pytest.raises(httpx.RemoteProtocolError, match="before it answered"):
            await transport.handle_async_request(engine.post(b"x" * 20_000_000))
        await engine.peers[0].gone()


async def test_a_finished_exchange_leaves_nothing_for_the_garbage_collector(transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.send(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"2\r\nok\r\n", b"0\r\n\r\n"
            )

    async with Hostile(script) as engine:
        for count in range(20):
            if count == 10:
                gc.collect()
                gc.disable()
            response = await transport.handle_async_request(engine.get())
            assert await body_of(response) == b"ok"
        del response
        try:
            assert gc.collect() < 10  # not one object per request
        finally:
            gc.enable()
