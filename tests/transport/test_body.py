"""Reading a body: pushed in the same turn, pulled, slowly, partly, or not at all."""

import asyncio
import ssl
import traceback

import httpx
import pytest

from sidecar.transport import BodyStream, Transport
from sidecar.transport.body import KEPT_LIMIT_BYTES
from tests.transport.hostile import OK, Hostile, Peer, answering, body_of, turns

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LARGE_BYTES = 64 * 1024 * 1024
# What may be on its way to a reader that does not read: the kernel's buffers and ours.
IN_FLIGHT_BYTES = 4 * 1024 * 1024


def drop(piece: bytes) -> None:
    pass


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


async def opened(transport: Transport, engine: Hostile) -> BodyStream:
    response = await transport.handle_async_request(engine.get())
    assert isinstance(response.stream, BodyStream)
    return response.stream


class Pourer:
    """An engine that sends as much as it is let."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.sent_bytes = 0

    async def __call__(self, peer: Peer) -> None:
        await peer.request()
        peer.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % self.size_bytes)
        piece = b"x" * 65_536
        while self.sent_bytes < self.size_bytes:
            peer.writer.write(piece)
            await peer.writer.drain()
            self.sent_bytes += len(piece)
        await peer.gone()


async def settled(pourer: Pourer) -> int:
    """How much has been sent once nothing moves any more."""
    seen = -1
    while seen != pourer.sent_bytes:
        seen = pourer.sent_bytes
        await asyncio.sleep(0.03)
    return seen


async def test_every_read_is_written_in_one_piece_while_it_is_received(transport: Transport) -> None:
    pieces: list[bytes] = []
    stacks: list[list[str]] = []

    def write(piece: bytes) -> None:
        pieces.append(piece)
        stacks.append([frame.name for frame in traceback.extract_stack()])

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        await asyncio.sleep(0.02)
        await peer.send(chunk(b"one"), chunk(b"two"), chunk(b"three") + chunk(b"four") + b"0\r\n\r\n")

    async with Hostile(script) as engine:
        await (await opened(transport, engine)).relay(write)
    assert pieces == [b"one", b"two", b"threefour"]
    assert all("data_received" in stack for stack in stacks)


async def test_the_relaying_task_sleeps_through_the_body(transport: Transport) -> None:
    steps = 0

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        await asyncio.sleep(0.02)
        for _ in range(50):
            await peer.send(chunk(b"event"))
        await peer.send(b"0\r\n\r\n")

    class Counted:
        """Awaits relay() and counts how often it is resumed."""

        def __init__(self, stream: BodyStream, pieces: list[bytes]) -> None:
            self.relay = stream.relay(pieces.append)

        def __await__(self):  # type: ignore[no-untyped-def]
            nonlocal steps
            for waited in self.relay.__await__():
                steps += 1
                yield waited

    async with Hostile(script) as engine:
        pieces: list[bytes] = []
        await Counted(await opened(transport, engine), pieces)
    assert pieces == [b"event"] * 50
    assert steps == 1


async def test_what_came_with_the_head_is_relayed_at_once(transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD + chunk(b"early") + chunk(b"bird"))
        await peer.gone()

    async with Hostile(script) as engine:
        stream = await opened(transport, engine)
        pieces: list[bytes] = []
        task = asyncio.get_running_loop().create_task(stream.relay(pieces.append))
        await turns(1)
        assert pieces == [b"earlybird"]
        assert not task.done()
        await stream.aclose()
        with pytest.raises(httpx.StreamClosed):
            await task


async def test_a_small_answer_is_relayed_without_waiting(transport: Transport) -> None:
    async with Hostile(answering(OK)) as engine:
        relay = (await opened(transport, engine)).relay(drop)
        with pytest.raises(StopIteration):
            relay.send(None)


@pytest.mark.parametrize("moment", ["in the kept part", "while receiving"])
async def test_an_error_out_of_write_closes_the_socket_and_surfaces(
    transport: Transport, moment: str
) -> None:
    class ClientGoneError(Exception):
        pass

    def write(piece: bytes) -> None:
        if b"bad" in piece:
            raise ClientGoneError("in the middle")

    async def script(peer: Peer) -> None:
        await peer.request()
        if moment == "while receiving":
            await peer.send(HEAD + chunk(b"good"))
            await asyncio.sleep(0.02)
            await peer.send(chunk(b"bad") + chunk(b"after"))
        else:
            await peer.send(HEAD + chunk(b"good") + chunk(b"bad"))
        await peer.gone()

    async with Hostile(script) as engine:
        stream = await opened(transport, engine)
        with pytest.raises(ClientGoneError, match="in the middle"):
            await stream.relay(write)
        async with asyncio.timeout(0.1):
            await engine.peers[0].ended.wait()


async def test_nothing_is_written_after_the_stream_was_closed_from_within_write(transport: Transport) -> None:
    pieces: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        await asyncio.sleep(0.02)
        await peer.send(chunk(b"one") + chunk(b"two") + b"0\r\n\r\n")
        await peer.gone()

    async with Hostile(script) as engine:
        stream = await opened(transport, engine)

        def write(piece: bytes) -> None:
            pieces.append(piece)
            stream.abandon()

        with pytest.raises(httpx.StreamClosed):
            await stream.relay(write)
        assert pieces == [b"onetwo"]
        await engine.peers[0].left()


async def test_a_body_is_read_once(transport: Transport) -> None:
    async with Hostile(answering(OK)) as engine:
        stream = await opened(transport, engine)
        await stream.relay(drop)
        with pytest.raises(httpx.StreamConsumed):
            await stream.relay(drop)
        with pytest.raises(httpx.StreamConsumed):
            [piece async for piece in stream]


async def test_a_body_that_nobody_reads_stops_the_engine(transport: Transport) -> None:
    pourer = Pourer(LARGE_BYTES)
    async with Hostile(pourer, buffer_bytes=65_536) as engine:
        stream = await opened(transport, engine)
        assert await settled(pourer) < IN_FLIGHT_BYTES
        await stream.aclose()
        await engine.peers[0].left()


async def test_a_paused_relay_stops_the_engine_and_resuming_loses_nothing(transport: Transport) -> None:
    pourer = Pourer(LARGE_BYTES)
    async with Hostile(pourer, buffer_bytes=65_536) as engine:
        stream = await opened(transport, engine)
        got_bytes = 0

        def write(piece: bytes) -> None:
            nonlocal got_bytes
            if not got_bytes:
                stream.pause()
                stream.pause()
            got_bytes += len(piece)

        async with asyncio.TaskGroup() as group:
            group.create_task(stream.relay(write))
            assert await settled(pourer) < IN_FLIGHT_BYTES
            # One read of the socket may be under way when pause() is called.
            assert 0 < got_bytes <= KEPT_LIMIT_BYTES + 2 * 262_144
            stream.resume()
            stream.resume()
        assert got_bytes == LARGE_BYTES


async def test_back_pressure_holds_over_tls_too(
    engine_tls: ssl.SSLContext, trusting_tls: ssl.SSLContext
) -> None:
    pourer = Pourer(LARGE_BYTES // 2)
    async with (
        Hostile(pourer, tls=engine_tls, buffer_bytes=65_536) as engine,
        Transport(tls=trusting_tls) as transport,
    ):
        stream = await opened(transport, engine)
        # The TLS layers of both loops keep some megabytes of their own, however much is to come.
        assert await settled(pourer) < 2 * IN_FLIGHT_BYTES
        got_bytes = 0

        def write(piece: bytes) -> None:
            nonlocal got_bytes
            got_bytes += len(piece)

        await stream.relay(write)
        assert got_bytes == pourer.size_bytes


async def test_a_slow_puller_holds_little_and_gets_everything(transport: Transport) -> None:
    pourer = Pourer(8 * 1024 * 1024)
    async with Hostile(pourer, buffer_bytes=65_536) as engine:
        stream = await opened(transport, engine)
        got_bytes = 0
        async for piece in stream:
            got_bytes += len(piece)
            if got_bytes < 1_000_000:
                await asyncio.sleep(0.001)
        assert got_bytes == pourer.size_bytes


async def test_pausing_and_resuming_after_the_end_does_not_touch_the_next_request(
    transport: Transport,
) -> None:
    async with Hostile(answering(OK, OK, OK)) as engine:
        stream = await opened(transport, engine)
        await stream.relay(drop)
        stream.pause()
        response = await transport.handle_async_request(engine.get())
        assert await body_of(response) == b"ok"
        assert response.extensions["reused"]
        stream.resume()
        await stream.aclose()
        response = await transport.handle_async_request(engine.get())
        assert response.extensions["reused"]


async def test_a_connection_whose_reader_was_paused_at_the_end_serves_on(transport: Transport) -> None:
    async with Hostile(answering(HEAD + chunk(b"x" * 70_000) + b"0\r\n\r\n", OK)) as engine:
        stream = await opened(transport, engine)
        stream.pause()
        stream.resume()
        await stream.relay(lambda piece: stream.pause())
        response = await transport.handle_async_request(engine.get())
        assert await body_of(response) == b"ok"
        assert response.extensions["reused"]


async def test_leaving_a_body_early_closes_the_socket(transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD + chunk(b"one"))
        await peer.gone()

    async with Hostile(script) as engine:
        await (await opened(transport, engine)).aclose()
        await engine.peers[0].left()
        stream = await opened(transport, engine)
        async for piece in stream:
            assert piece == b"one"
            break
        await stream.aclose()
        await engine.peers[1].left()


async def test_closing_a_body_that_has_come_whole_keeps_the_connection(transport: Transport) -> None:
    async with Hostile(answering(OK, OK)) as engine:
        await (await opened(transport, engine)).aclose()
        response = await transport.handle_async_request(engine.get())
        assert response.extensions["reused"]
        await body_of(response)


async def test_a_slow_drip_is_waited_for(transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        for byte in OK:
            await peer.send(b"%c" % byte)
            await asyncio.sleep(0.002)

    async with Hostile(script) as engine:
        assert await body_of(await transport.handle_async_request(engine.get())) == b"ok"
