"""The transport as httpx sees it: errors by name, the retry, cancelling, TLS, IPv6."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from sidecar.transport import BodyStream, Transport
from tests.transport.hostile import OK, Hostile, Peer, Script, answering, body_of, serve_ok, turns

CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_an_httpx_client_works_on_it() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n", b'{"a":', b'"b\xc3\xbcc"}'[:6])
        while await peer.request():
            await peer.send(CHUNKED_HEAD, b"4\r\none\n\r\n", b"4\r\ntwo\n\r\n", b"0\r\n\r\n")

    async with (
        Hostile(script) as engine,
        httpx.AsyncClient(transport=Transport(), base_url=engine.origin) as client,
    ):
        response = await client.get("/metrics", params={"q": "ü"})
        assert response.content == b'{"a":"b\xc3\xbcc"'
        assert response.http_version == "HTTP/1.1"
        assert response.reason_phrase == "OK"
        async with client.stream("POST", "/stream", json={"x": 1}) as streamed:
            assert [line async for line in streamed.aiter_lines()] == ["one", "two"]
        assert (await client.post("/again", content=_pieces(b"ab", b"cd"))).content == response.content
    first, second = engine.peers[0].requests
    (third,) = engine.peers[1].requests
    assert first.startswith(b"GET /metrics?q=%C3%BC HTTP/1.1\r\nHost: 127.0.0.1:")
    assert second.endswith(b'{"x":1}')
    assert third.endswith(b"\r\n\r\n2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n")


async def _pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


class Streamed(httpx.AsyncByteStream):
    """A body in pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece


async def test_a_refused_connection_is_a_connect_error(transport: Transport) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(httpx.ConnectError, match=r"cannot connect to http://127\.0\.0\.1:"):
            await transport.handle_async_request(
                httpx.Request("GET", f"http://127.0.0.1:{unused.getsockname()[1]}/")
            )


async def test_a_host_name_that_cannot_be_looked_up_is_a_connect_error(transport: Transport) -> None:
    # A label may have 63 characters: refused before any resolver is asked.
    with pytest.raises(httpx.ConnectError):
        await transport.handle_async_request(httpx.Request("GET", f"http://{'a' * 64}.example/"))


async def test_other_schemes_are_refused(transport: Transport) -> None:
    with pytest.raises(httpx.UnsupportedProtocol):
        await transport.handle_async_request(httpx.Request("GET", "ftp://127.0.0.1/"))


async def test_a_connection_that_is_not_accepted_in_time_is_a_connect_timeout() -> None:
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for waiting in (first, second):  # the queue is full now: the next SYN is dropped
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        async with Transport(connect_timeout_s=0.05) as transport:
            with pytest.raises(httpx.ConnectTimeout, match=r"within 0\.05 s"):
                await transport.handle_async_request(
                    httpx.Request("GET", f"http://127.0.0.1:{full.getsockname()[1]}/")
                )


async def test_a_tls_handshake_counts_towards_the_connect_timeout() -> None:
    async with Hostile(_silent) as engine, Transport(connect_timeout_s=0.05) as transport:
        with pytest.raises(httpx.ConnectTimeout):
            await transport.handle_async_request(httpx.Request("GET", f"https://127.0.0.1:{engine.port}/"))
        await engine.peers[0].left()


async def _silent(peer: Peer) -> None:
    await peer.gone()


async def test_a_host_name_is_looked_up(transport: Transport) -> None:
    async with Hostile(serve_ok) as engine:
        request = httpx.Request("GET", f"http://localhost:{engine.port}/")
        assert await body_of(await transport.handle_async_request(request)) == b"ok"


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
async def test_an_ipv6_literal_is_a_host(transport: Transport) -> None:
    async with Hostile(serve_ok, host="::1") as engine:
        for reused in (False, True):
            response = await transport.handle_async_request(engine.get())
            assert await body_of(response) == b"ok"
            assert response.extensions["reused"] is reused


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_tls_engine_is_verified_and_served_from(
    engine_tls: ssl.SSLContext, trusting_tls: ssl.SSLContext, host: str
) -> None:
    long = b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000
    async with (
        Hostile(answering(long, OK), tls=engine_tls) as engine,
        Transport(tls=trusting_tls) as transport,
    ):
        url = f"https://{host}:{engine.port}/"
        response = await transport.handle_async_request(httpx.Request("POST", url, content=b"y" * 200_000))
        assert len(await body_of(response)) == 300_000
        response = await transport.handle_async_request(httpx.Request("GET", url))
        assert await body_of(response) == b"ok"
        assert response.extensions["reused"]
        assert engine.peers[0].requests[0].endswith(b"y" * 200_000)


async def test_a_tls_engine_that_nobody_vouches_for_is_a_connect_error(engine_tls: ssl.SSLContext) -> None:
    async with Hostile(serve_ok, tls=engine_tls) as engine, Transport() as transport:
        with pytest.raises(httpx.ConnectError, match=r"(?i)certificate verify failed"):
            await transport.handle_async_request(engine.get())


async def test_a_tls_engine_of_another_name_is_a_connect_error(
    engine_tls: ssl.SSLContext, trusting_tls: ssl.SSLContext
) -> None:
    async with (
        Hostile(serve_ok, host="127.0.0.2", tls=engine_tls) as engine,
        Transport(tls=trusting_tls) as transport,
    ):
        with pytest.raises(httpx.ConnectError, match=r"(?i)certificate verify failed"):
            await transport.handle_async_request(engine.get())


async def test_a_plain_engine_behind_https_is_a_connect_error(transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.read(100)
        await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.close()

    async with Hostile(script) as engine:
        with pytest.raises(httpx.ConnectError):
            await transport.handle_async_request(httpx.Request("GET", f"https://127.0.0.1:{engine.port}/"))


@pytest.mark.parametrize("cut", [0, 1, 7])
async def test_a_tls_engine_that_goes_away_is_an_error(
    engine_tls: ssl.SSLContext, trusting_tls: ssl.SSLContext, cut: int
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED_HEAD[:cut] if cut < 7 else CHUNKED_HEAD + b"9\r\nabc")
        await peer.reset()

    async with Hostile(script, tls=engine_tls) as engine, Transport(tls=trusting_tls) as transport:
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await body_of(await transport.handle_async_request(engine.get()))


# The retry.


def _stale(end: str, last_words: bytes = b"") -> Script:
    """Answers once on the first connection and ends it when the next request comes; serves on later ones."""

    async def script(peer: Peer) -> None:
        if peer.number == 0:
            await peer.request()
            await peer.send(OK)
            await peer.reader.readuntil(b"\r\n\r\n")
            await peer.send(last_words)
            await (peer.close() if end == "close" else peer.reset())
        else:
            await serve_ok(peer)

    return script


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_stale_connection_is_replaced_once_for_any_method(transport: Transport, end: str) -> None:
    async with Hostile(_stale(end)) as engine:
        await body_of(await transport.handle_async_request(engine.get()))
        response = await transport.handle_async_request(engine.post(b'{"prompt": "x"}'))
        assert await body_of(response) == b"ok"
        assert response.extensions["connection_id"] == 2
        assert not response.extensions["reused"]
        assert len(engine.peers) == 2
        assert engine.peers[1].requests[0].endswith(b'{"prompt": "x"}')


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_fresh_connection_that_dies_is_not_replaced(transport: Transport, end: str) -> None:
    async def script(peer: Peer) -> None:
        if peer.number == 0:
            await peer.request()
            await peer.send(OK)
        await peer.request()
        await (peer.close() if end == "close" else peer.reset())

    async with Hostile(script) as engine:
        await body_of(await transport.handle_async_request(engine.get()))
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await transport.handle_async_request(engine.get())
        assert len(engine.peers) == 2
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await transport.handle_async_request(engine.get())
        assert len(engine.peers) == 3


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("last_words", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n"])
async def test_a_request_whose_answer_has_begun_is_not_sent_again(
    transport: Transport, end: str, last_words: bytes
) -> None:
    async with Hostile(_stale(end, last_words)) as engine:
        await body_of(await transport.handle_async_request(engine.get()))
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await transport.handle_async_request(engine.get())
        assert len(engine.peers) == 1


async def test_a_refusal_of_our_own_is_not_retried(transport: Transport) -> None:
    async with Hostile(answering(OK, b"nonsense")) as engine:
        await body_of(await transport.handle_async_request(engine.get()))
        with pytest.raises(httpx.RemoteProtocolError, match=r"not HTTP/1\.1"):
            await transport.handle_async_request(engine.get())
        assert len(engine.peers) == 1


async def test_a_streamed_body_never_goes_to_an_idle_connection(transport: Transport) -> None:
    async with Hostile(_stale("close")) as engine:
        await body_of(await transport.handle_async_request(engine.get()))
        response = await transport.handle_async_request(
            httpx.Request("POST", engine.origin, stream=Streamed(b"abc"))
        )
        assert await body_of(response) == b"ok"
        assert not response.extensions["reused"]
        assert engine.peers[1].requests[0].endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        response = await transport.handle_async_request(engine.get())
        assert await body_of(response) == b"ok"
        assert (response.extensions["connection_id"], response.extensions["reused"]) == (2, True)
        assert len(engine.peers) == 2


# Cancelling.


class Endless(httpx.AsyncByteStream):
    """A request body that never ends, as fast as it is taken or only one piece."""

    def __init__(self, *, stalls: bool) -> None:
        self.stalls = stalls
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 65_536
                if self.stalls:
                    await asyncio.Event().wait()
        finally:
            self.closed = True


def _plain(engine: Hostile) -> httpx.Request:
    return engine.get()


def _uploading(engine: Hostile) -> httpx.Request:
    return httpx.Request("POST", engine.origin, stream=Endless(stalls=False))


def _stalling(engine: Hostile) -> httpx.Request:
    return httpx.Request("POST", engine.origin, stream=Endless(stalls=True))


def _expecting(engine: Hostile) -> httpx.Request:
    headers = {"Expect": "100-continue"}
    return httpx.Request("POST", engine.origin, headers=headers, stream=Endless(stalls=True))


def _over_tls(engine: Hostile) -> httpx.Request:
    return httpx.Request("GET", f"https://127.0.0.1:{engine.port}/")


def _drop(piece: bytes) -> None:
    pass


async def _relay(stream: BodyStream) -> None:
    await stream.relay(_drop)


async def _relay_paused(stream: BodyStream) -> None:
    stream.pause()
    await stream.relay(_drop)


async def _pull(stream: BodyStream) -> None:
    async for _ in stream:
        pass


STAGES: dict[str, tuple[Callable[[Hostile], httpx.Request], bytes]] = {
    "TLS handshake": (_over_tls, b""),
    "before the head": (_plain, b""),
    "after an interim answer": (_plain, b"HTTP/1.1 102 Processing\r\n\r\n"),
    "within the head": (_plain, b"HTTP/1.1 200 OK\r\nContent-"),
    "uploading into a full socket": (_uploading, b""),
    "uploading from a slow source": (_stalling, b""),
    "waiting for a 100": (_expecting, b""),
    "relay": (_plain, CHUNKED_HEAD + b"2\r\nok\r\n"),
    "paused relay": (_plain, CHUNKED_HEAD + b"2\r\nok\r\n"),
    "iteration": (_plain, CHUNKED_HEAD + b"2\r\nok\r\n"),
}
READERS: dict[str, Callable[[BodyStream], Awaitable[None]]] = {
    "relay": _relay,
    "paused relay": _relay_paused,
    "iteration": _pull,
}


@pytest.mark.parametrize("stage", STAGES)
async def test_cancelling_closes_the_socket_at_once_at_any_stage(transport: Transport, stage: str) -> None:
    make_request, answer = STAGES[stage]
    reached = asyncio.Event()
    cancelled = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.reader.read(100)
        await peer.send(answer)
        reached.set()
        await cancelled.wait()  # not reading until then
        await peer.gone()

    async with Hostile(script, buffer_bytes=65_536) as engine:
        request = make_request(engine)

        async def call() -> None:
            response = await transport.handle_async_request(request)
            assert isinstance(response.stream, BodyStream)
            await READERS[stage](response.stream)

        task = asyncio.get_running_loop().create_task(call())
        await reached.wait()
        await asyncio.sleep(0.02)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if isinstance(request.stream, Endless):
            assert request.stream.closed or stage == "waiting for a 100"
        cancelled.set()
        async with asyncio.timeout(0.1):
            await engine.peers[0].ended.wait()
        assert len(engine.peers) == 1


async def test_cancelling_closes_the_socket_before_a_reluctant_source_has_ended(transport: Transport) -> None:
    class Reluctant(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                yield b"x"
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.1)

    async with Hostile(_silent) as engine:
        request = httpx.Request("POST", engine.origin, stream=Reluctant())
        task = asyncio.get_running_loop().create_task(transport.handle_async_request(request))
        await asyncio.sleep(0.02)
        task.cancel()
        await engine.peers[0].left()
        assert not task.done()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_cancelling_after_the_answer_came_whole_spoils_no_other_request(transport: Transport) -> None:
    async with Hostile(serve_ok) as engine:
        first = asyncio.get_running_loop().create_task(transport.handle_async_request(engine.get()))
        while not transport._pool._idle:
            await turns(1)
        assert not first.done()  # its answer is whole, its connection idle, but it has not run yet
        second = transport.handle_async_request(engine.get())
        answered = second.send(None)  # takes that connection
        assert not transport._pool._idle[next(iter(transport._pool._idle))]
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.wait((answered,))
        with pytest.raises(StopIteration) as returned:
            second.send(None)
        assert returned.value.value.extensions["reused"]
        assert await body_of(returned.value.value) == b"ok"
