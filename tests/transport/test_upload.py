"""Streamed request bodies: on the wire, slowed down, cut short, failing, with Expect: 100-continue."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import httpx
import pytest

from sidecar.transport import BodyStream, Transport, upload
from tests.transport.hostile import OK, Hostile, Peer, body_of, serve_ok, turns

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
REFUSED = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"
LARGE_BYTES = 64 * 1024 * 1024
# The kernel's buffers for a receiver that does not read (net.ipv4.tcp_wmem is 4 MiB) and ours.
IN_FLIGHT_BYTES = 8 * 1024 * 1024


class Source(httpx.AsyncByteStream):
    """A body in pieces; a piece that is an exception is raised, one that is an event is waited for."""

    def __init__(self, *pieces: bytes | BaseException | asyncio.Event) -> None:
        self.pieces = pieces
        self.taken = 0
        self.left = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for piece in self.pieces:
                match piece:
                    case bytes():
                        self.taken += 1
                        yield piece
                    case asyncio.Event():
                        await piece.wait()
                    case error:
                        raise error
        finally:
            self.left = True


def post(engine: Hostile, source: httpx.AsyncByteStream, **headers: str) -> httpx.Request:
    fields = [("Host", "engine"), *((name.replace("_", "-"), value) for name, value in headers.items())]
    return httpx.Request("POST", engine.origin + "/", headers=fields, stream=source)


async def _serves_on(transport: Transport, engine: Hostile) -> None:
    """The next request goes over the same connection."""
    response = await transport.handle_async_request(engine.get())
    assert response.extensions["reused"]
    await body_of(response)


async def test_a_body_without_a_length_goes_out_in_chunks_and_the_connection_serves_on(
    transport: Transport,
) -> None:
    async with Hostile(serve_ok) as engine:
        response = await transport.handle_async_request(post(engine, Source(b"a", b"", b"bc" * 10)))
        assert await body_of(response) == b"ok"
        await _serves_on(transport, engine)
        assert engine.peers[0].requests[0] == (
            b"POST / HTTP/1.1\r\nHost: engine\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"1\r\na\r\n14\r\n" + b"bc" * 10 + b"\r\n0\r\n\r\n"
        )


async def test_a_body_with_a_length_goes_out_bare_and_the_connection_serves_on(transport: Transport) -> None:
    async with Hostile(serve_ok) as engine:
        response = await transport.handle_async_request(
            post(engine, Source(b"abc", b"", b"de"), Content_Length="5")
        )
        assert await body_of(response) == b"ok"
        await _serves_on(transport, engine)
        assert (
            engine.peers[0].requests[0]
            == b"POST / HTTP/1.1\r\nHost: engine\r\nContent-Length: 5\r\n\r\nabcde"
        )


async def test_a_body_of_length_zero_is_sent_with_its_head_and_the_connection_serves_on(
    transport: Transport,
) -> None:
    async with Hostile(serve_ok) as engine:
        response = await transport.handle_async_request(post(engine, Source(), Content_Length="0"))
        assert await body_of(response) == b"ok"
        await _serves_on(transport, engine)


async def test_pieces_leave_as_they_come(transport: Transport) -> None:
    more = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        assert await peer.reader.readexactly(6) == b"1\r\na\r\n"
        more.set()
        assert await peer.reader.readuntil(b"0\r\n\r\n") == b"1\r\nb\r\n0\r\n\r\n"
        await peer.send(OK)

    async with Hostile(script) as engine:
        response = await transport.handle_async_request(post(engine, Source(b"a", more, b"b")))
        assert await body_of(response) == b"ok"


async def test_an_engine_that_does_not_read_stops_the_upload(transport: Transport) -> None:
    class Flood(httpx.AsyncByteStream):
        taken_bytes = 0

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for _ in range(LARGE_BYTES // 65_536):
                self.taken_bytes += 65_536
                yield b"x" * 65_536

    release = asyncio.Event()
    received_bytes = 0

    async def script(peer: Peer) -> None:
        nonlocal received_bytes
        await peer.reader.readuntil(b"\r\n\r\n")
        await release.wait()
        while received_bytes < LARGE_BYTES:
            received_bytes += len(await peer.reader.read(1 << 20))
        await peer.send(OK)

    async with Hostile(script, buffer_bytes=65_536) as engine:
        flood = Flood()
        sending = asyncio.get_running_loop().create_task(
            transport.handle_async_request(post(engine, flood, Content_Length=str(LARGE_BYTES)))
        )
        seen = -1
        while seen != flood.taken_bytes:
            seen = flood.taken_bytes
            await asyncio.sleep(0.03)
        assert 0 < seen < IN_FLIGHT_BYTES
        release.set()
        assert await body_of(await sending) == b"ok"
        assert received_bytes == LARGE_BYTES


@pytest.mark.parametrize("ending", [b"", b"x" * 100_000], ids=["small", "large"])
async def test_an_early_final_answer_stops_the_upload_and_is_delivered_whole(
    transport: Transport, ending: bytes
) -> None:
    answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\n\r\nno" % (2 + len(ending))

    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(answer, ending)
        await peer.gone()

    async with Hostile(script) as engine:
        never = asyncio.Event()
        source = Source(b"a", never)
        response = await transport.handle_async_request(post(engine, source))
        assert response.status_code == 413
        assert source.left
        assert isinstance(response.stream, BodyStream)
        assert await body_of(response) == b"no" + ending
        await engine.peers[0].left()


async def test_an_early_final_answer_is_read_although_the_engine_hangs_up_at_once(
    transport: Transport,
) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.01)
        await peer.send(REFUSED)
        await peer.close()

    async with Hostile(script, buffer_bytes=65_536) as engine:
        for _ in range(10):
            source = Source(*[b"x" * 65_536] * 1000)
            response = await transport.handle_async_request(post(engine, source))
            assert response.status_code == 413
            assert await body_of(response) == b"no"
            assert source.left
            assert source.taken < 1000


@pytest.mark.parametrize("size", [2, 100_000])
async def test_a_refusal_is_read_although_a_write_finds_the_reset_first(
    transport: Transport, size: int
) -> None:
    more = asyncio.Event()
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        request = httpx.Request(
            "POST",
            f"http://127.0.0.1:{listener.getsockname()[1]}/",
            stream=Source(b"a", more, b"b", asyncio.Event()),
        )
        sending = loop.create_task(transport.handle_async_request(request))
        engine, _ = await loop.sock_accept(listener)
        await asyncio.sleep(0.02)
        # All in one turn of the loop, so that the client cannot read before it writes again.
        with engine:
            engine.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
            engine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        more.set()
        response = await sending
        assert response.status_code == 413
        assert await body_of(response) == b"x" * size
        # The connection is dead and nobody gets it.
        listener.close()
        with pytest.raises(httpx.ConnectError):
            await transport.handle_async_request(request)


async def test_an_answer_that_comes_once_the_length_is_reached_is_not_early(transport: Transport) -> None:
    async with Hostile(serve_ok) as engine:
        never = asyncio.Event()  # the source does not say that it is done
        response = await transport.handle_async_request(
            post(engine, Source(b"abc", never), Content_Length="3")
        )
        assert await body_of(response) == b"ok"
        await _serves_on(transport, engine)


@pytest.mark.parametrize("error", [ValueError("client sent nonsense"), asyncio.CancelledError("from within")])
async def test_an_error_in_the_source_closes_the_socket_and_surfaces(
    transport: Transport, error: BaseException
) -> None:
    async def script(peer: Peer) -> None:
        await peer.gone()

    async with Hostile(script) as engine:
        with pytest.raises(type(error)) as raised:
            await transport.handle_async_request(post(engine, Source(b"a", error)))
        assert raised.value.args == error.args
        async with asyncio.timeout(0.1):
            await engine.peers[0].ended.wait()


async def test_an_error_in_the_source_after_the_answers_head_cuts_the_answer(transport: Transport) -> None:
    class Spiteful(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"a"
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("will not be stopped") from None

    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(REFUSED[:-1])
        await peer.gone()

    async with Hostile(script) as engine:
        response = await transport.handle_async_request(post(engine, Spiteful()))
        with pytest.raises(ValueError, match="will not be stopped"):
            await body_of(response)
        await engine.peers[0].left()


@pytest.mark.parametrize(
    ("pieces", "said"), [((b"ab",), "1 bytes short"), ((b"ab", b"cd"), "1 bytes longer")]
)
async def test_a_body_of_another_length_than_announced_closes_the_socket_and_surfaces(
    transport: Transport, pieces: tuple[bytes, ...], said: str
) -> None:
    async def script(peer: Peer) -> None:
        head = await peer.reader.readuntil(b"\r\n\r\n")
        assert await peer.gone() <= 3, head

    async with Hostile(script) as engine:
        with pytest.raises(httpx.LocalProtocolError, match=said):
            await transport.handle_async_request(post(engine, Source(*pieces), Content_Length="3"))
        await engine.peers[0].left()


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_an_engine_that_dies_during_an_upload_is_an_error_and_the_source_is_left(
    transport: Transport, end: str
) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await (peer.close() if end == "close" else peer.reset())

    async with Hostile(script) as engine:
        for source in (Source(b"a", asyncio.Event()), Source(*[b"x" * 65_536] * 1000)):
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)):
                await transport.handle_async_request(post(engine, source))
            assert source.left


async def test_interim_answers_during_an_upload_do_not_stop_it(transport: Transport) -> None:
    more = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(CONTINUE, b"HTTP/1.1 102 Processing\r\n\r\n")
        more.set()
        await peer.reader.readuntil(b"0\r\n\r\n")
        await peer.send(OK)

    async with Hostile(script) as engine:
        response = await transport.handle_async_request(post(engine, Source(b"a", more, b"b")))
        assert await body_of(response) == b"ok"


# Expect: 100-continue (RFC 9110 10.1.1).


async def test_an_expected_100_is_waited_for(transport: Transport) -> None:
    source = Source(b"abc")

    async def script(peer: Peer) -> None:
        assert b"\r\nExpect: 100-continue\r\n" in await peer.reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.03)
        assert source.taken == 0
        await peer.send(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        await turns(3)
        assert source.taken == 0
        await peer.send(CONTINUE, CONTINUE)
        assert await peer.reader.readexactly(3) == b"abc"
        await peer.send(OK)
        await serve_ok(peer)

    async with Hostile(script) as engine:
        request = post(engine, source, Content_Length="3", Expect="100-continue")
        assert await body_of(await transport.handle_async_request(request)) == b"ok"
        await _serves_on(transport, engine)


async def test_an_engine_that_knows_no_100_gets_the_body_after_a_while(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert upload.CONTINUE_WAIT_S == 1.0
    monkeypatch.setattr(upload, "CONTINUE_WAIT_S", 0.05)
    async with Hostile(serve_ok) as engine:
        start_s = asyncio.get_running_loop().time()
        request = post(engine, Source(b"abc"), Content_Length="3", Expect="100-continue")
        assert await body_of(await transport.handle_async_request(request)) == b"ok"
        assert asyncio.get_running_loop().time() - start_s > 0.045
        assert engine.peers[0].requests[0].endswith(b"\r\n\r\nabc")


async def test_a_final_answer_instead_of_the_100_means_the_body_is_never_read(transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 2\r\n\r\nno")
        assert await peer.gone() == 0

    async with Hostile(script) as engine:
        source = Source(b"abc")
        response = await transport.handle_async_request(
            post(engine, source, Content_Length="3", Expect="100-continue")
        )
        assert response.status_code == 417
        assert await body_of(response) == b"no"
        assert source.taken == 0
        await engine.peers[0].left()


async def test_known_bytes_do_not_wait_for_a_100(transport: Transport) -> None:
    async with Hostile(serve_ok) as engine:
        headers = [("Host", "engine"), ("Content-Length", "3"), ("Expect", "100-continue")]
        request = httpx.Request("POST", engine.origin, headers=headers, stream=httpx.ByteStream(b"abc"))
        assert await body_of(await transport.handle_async_request(request)) == b"ok"
        assert engine.peers[0].requests[0].endswith(b"abc")
