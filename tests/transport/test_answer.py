"""Responses on the wire: every split, every cut, every kind of framing."""

import httpx
import pytest

from sidecar.transport import BodyStream, Transport, client
from tests.transport.hostile import OK, Hostile, Peer, answering, body_of

SIZED = (
    b"HTTP/1.1 200 Fine Thing\r\nX-Case: A\r\nx-case: b\r\nEmpty:\r\nContent-Length: 11\r\n\r\nhello world"
)
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
    b'5;name=value;other="quoted; text"\r\nhello\r\n6\r\n world\r\n000;last\r\nX-Sum: 42\r\nX-Other:\r\n\r\n'
)
AFTER_INTERIM = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 199 Odd\r\nX: y\r\n\r\n"
    b"HTTP/1.1 201 Created\r\nContent-Length: 11\r\n\r\nhello world"
)
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello world"
OLD = b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 11\r\n\r\nhello world"

WHOLE = {"sized": SIZED, "chunked": CHUNKED, "after interim": AFTER_INTERIM, "1.0 kept alive": OLD}
EVERY = {**WHOLE, "until close": UNTIL_CLOSE}


async def relayed(response: httpx.Response) -> bytes:
    assert isinstance(response.stream, BodyStream)
    pieces: list[bytes] = []
    await response.stream.relay(pieces.append)
    return b"".join(pieces)


@pytest.mark.parametrize("name", WHOLE)
async def test_an_answer_is_the_same_however_it_is_split(transport: Transport, name: str) -> None:
    answer = WHOLE[name]

    async def script(peer: Peer) -> None:
        while request := await peer.request():
            at = int(request.split(b" ")[1][1:])
            await peer.send(answer[:at], answer[at:])

    async with Hostile(script) as engine:
        whole = await transport.handle_async_request(engine.get("/0"))
        assert await relayed(whole) == b"hello world"
        for at in range(1, len(answer)):
            split = await transport.handle_async_request(engine.get(f"/{at}"))
            assert await relayed(split) == b"hello world"
            assert split.status_code == whole.status_code
            assert split.headers.raw == whole.headers.raw
            assert split.extensions["reason_phrase"] == whole.extensions["reason_phrase"]
            assert isinstance(split.stream, BodyStream)
            assert isinstance(whole.stream, BodyStream)
            assert split.stream.trailers == whole.stream.trailers
            assert split.extensions["reused"]
    assert len(engine.peers) == 1


async def test_a_byte_at_a_time_is_read_like_a_whole_answer(transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.send(*(CHUNKED[at : at + 1] for at in range(len(CHUNKED))))

    async with Hostile(script) as engine:
        response = await transport.handle_async_request(engine.get())
        assert isinstance(response.stream, BodyStream)
        # A piece per byte: they were read one by one.
        assert [piece async for piece in response.stream] == [b"%c" % byte for byte in b"hello world"]


async def test_a_close_delimited_answer_is_the_same_however_it_is_split(transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        at = int((await peer.request()).split(b" ")[1][1:])
        await peer.send(UNTIL_CLOSE[:at], UNTIL_CLOSE[at:])
        await peer.close()

    async with Hostile(script) as engine:
        for at in range(1, len(UNTIL_CLOSE)):
            response = await transport.handle_async_request(engine.get(f"/{at}"))
            assert await relayed(response) == b"hello world"
            assert not response.extensions["reused"]


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("name", EVERY)
async def test_a_connection_that_ends_at_any_byte_is_an_error(name: str, end: str) -> None:
    answer = EVERY[name]
    head_ends = answer.rindex(b"\r\n\r\n", 0, answer.index(b"hello")) + 4
    error = httpx.RemoteProtocolError if end == "close" else httpx.ReadError

    async def script(peer: Peer) -> None:
        at = int((await peer.request()).split(b" ")[1][1:])
        await peer.send(answer[:at])
        await (peer.close() if end == "close" else peer.reset())

    async with Hostile(script) as engine, Transport() as transport:
        for at in range(len(answer)):
            if at < head_ends:
                with pytest.raises(error):
                    await transport.handle_async_request(engine.get(f"/{at}"))
                continue
            response = await transport.handle_async_request(engine.get(f"/{at}"))
            pieces: list[bytes] = []
            assert isinstance(response.stream, BodyStream)
            if name == "until close" and end == "close":
                await response.stream.relay(pieces.append)
                assert b"".join(pieces) == answer[head_ends:at]
                continue
            with pytest.raises(error):
                await response.stream.relay(pieces.append)
            assert b"hello world".startswith(b"".join(pieces))


async def test_what_came_before_a_cut_is_still_delivered(transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(SIZED[:-3])
        await peer.close()

    async with Hostile(script) as engine:
        response = await transport.handle_async_request(engine.get())
        assert isinstance(response.stream, BodyStream)
        pieces = aiter(response.stream)
        assert await anext(pieces) == b"hello wo"
        with pytest.raises(httpx.RemoteProtocolError, match="before the end of the body"):
            await anext(pieces)


async def test_status_reason_version_and_fields_are_the_engines_own(transport: Transport) -> None:
    async with Hostile(answering(SIZED, OLD)) as engine:
        response = await transport.handle_async_request(engine.get())
        assert await body_of(response) == b"hello world"
        assert response.status_code == 200
        assert response.headers.raw == [
            (b"X-Case", b"A"),
            (b"x-case", b"b"),
            (b"Empty", b""),
            (b"Content-Length", b"11"),
        ]
        assert response.extensions == {
            "reason_phrase": b"Fine Thing",
            "http_version": b"HTTP/1.1",
            "connection_id": 1,
            "reused": False,
        }
        old = await transport.handle_async_request(engine.get())
        assert old.extensions["http_version"] == b"HTTP/1.0"
        assert old.extensions["reused"]
        assert await body_of(old) == b"hello world"


async def test_nothing_of_an_interim_answer_is_left_in_the_final_one(transport: Transport) -> None:
    async with Hostile(answering(AFTER_INTERIM)) as engine:
        response = await transport.handle_async_request(engine.get())
        assert (response.status_code, response.extensions["reason_phrase"]) == (201, b"Created")
        assert response.headers.raw == [(b"Content-Length", b"11")]
        assert await body_of(response) == b"hello world"


@pytest.mark.parametrize("status", [b"100 Continue", b"103 Early Hints", b"199 Else"])
@pytest.mark.parametrize("framing", [b"Content-Length: 2", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize("cut", [0, 1], ids=["at once", "in two"])
async def test_an_interim_answer_with_a_body_is_refused(
    transport: Transport, status: bytes, framing: bytes, cut: int
) -> None:
    interim = b"HTTP/1.1 %b\r\n%b\r\n\r\n" % (status, framing)

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(*([interim, OK] if cut else [interim + OK]))

    async with Hostile(script) as engine:
        with pytest.raises(httpx.RemoteProtocolError, match="a body announced by status 1"):
            await transport.handle_async_request(engine.get())


async def test_an_interim_answer_may_say_that_it_has_no_body(transport: Transport) -> None:
    interim = b"HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\n"
    async with Hostile(answering(interim + OK)) as engine:
        assert await body_of(await transport.handle_async_request(engine.get())) == b"ok"


async def test_trailers_are_there_once_the_body_has_ended(transport: Transport) -> None:
    async with Hostile(answering(CHUNKED)) as engine:
        response = await transport.handle_async_request(engine.get())
        assert response.headers.raw == [(b"Transfer-Encoding", b"chunked"), (b"Trailer", b"X-Sum")]
        assert await body_of(response) == b"hello world"
        assert isinstance(response.stream, BodyStream)
        assert response.stream.trailers == [(b"X-Sum", b"42"), (b"X-Other", b"")]


@pytest.mark.parametrize(
    ("method", "head"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 404 Not Found\r\nContent-Length: 22\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\nETag: x\r\n\r\n"),
    ],
)
async def test_answers_without_a_body_end_at_the_head_and_the_connection_serves_on(
    transport: Transport, method: str, head: bytes
) -> None:
    async with Hostile(answering(head, OK)) as engine:
        response = await transport.handle_async_request(engine.get(method=method))
        assert await body_of(response) == b""
        after = await transport.handle_async_request(engine.get())
        assert await body_of(after) == b"ok"
        assert after.extensions["reused"]


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ],
)
async def test_a_head_answer_that_leaves_doubt_is_not_followed_by_another(
    transport: Transport, head: bytes
) -> None:
    async with Hostile(answering(head, OK)) as engine:
        response = await transport.handle_async_request(engine.get(method="HEAD"))
        assert await body_of(response) == b""
        after = await transport.handle_async_request(engine.get())
        assert not after.extensions["reused"]
        await after.stream.aclose()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 2\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 2",
        b"Content-Length: 2\r\nContent-Length: 3",
        b"Content-Length: 2, 2",
        b"Content-Length: -2",
        b"Content-Length: +2",
        b"Content-Length: 0x2",
        b"Content-Length: ",
        b"Content-Length: two",
        b"Content-Length: 99999999999999999999",
        b"Content-Length : 2",
        b"Transfer-Encoding: gzip",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked, gzip",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"X: a\r\n folded\r\nContent-Length: 2",
        b"X: a\nContent-Length: 2",
        b"X: a\0b\r\nContent-Length: 2",
        b"no colon\r\nContent-Length: 2",
    ],
)
async def test_a_head_that_leaves_the_end_in_doubt_is_refused(transport: Transport, head: bytes) -> None:
    async with Hostile(answering(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n2\r\nok\r\n0\r\n\r\n")) as engine:
        with pytest.raises(httpx.RemoteProtocolError):
            await transport.handle_async_request(engine.get())
        await engine.peers[0].left()


@pytest.mark.parametrize(
    "line",
    [
        b"HTTP/2.0 200 OK",
        b"HTTP/0.9 200 OK",
        b"HTTP/1.2 200 OK",
        b"http/1.1 200 OK",
        b"HTTP/1.1 099 Low",
        b"HTTP/1.1 20 Short",
        b"HTTP/1.1 2000 Long",
        b"HTTP/1.1 101 Switching Protocols",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket",
        b"GET / HTTP/1.1",
        b"\x16\x03\x01\x02\x00",
        b"SSH-2.0-OpenSSH_9.6",
    ],
)
async def test_what_is_not_an_http_1_answer_is_refused(transport: Transport, line: bytes) -> None:
    async with Hostile(answering(line + b"\r\nContent-Length: 2\r\n\r\nok")) as engine:
        with pytest.raises(httpx.RemoteProtocolError):
            await transport.handle_async_request(engine.get())


@pytest.mark.parametrize(
    "body",
    [
        b"2\r\nokX\r\n0\r\n\r\n",
        b"-2\r\nok\r\n0\r\n\r\n",
        b"2\nok\r\n",
        b"zz\r\n",
        b"fffffffffffffffff\r\n",
        b"\r\n\r\n",
    ],
)
async def test_bad_chunks_cut_the_body_with_an_error(transport: Transport, body: bytes) -> None:
    async with Hostile(answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)) as engine:
        response = await transport.handle_async_request(engine.get())
        with pytest.raises(httpx.RemoteProtocolError):
            await body_of(response)


@pytest.mark.parametrize("excess", [b"x", b"H", b"\0", OK, b"HTTP/1.1 500 Oops\r\n\r\n", b"data: late\n\n"])
@pytest.mark.parametrize("answer", [OK, OK.replace(b"Content", b"Connection: close\r\nContent"), CHUNKED])
async def test_bytes_after_an_answer_neither_spoil_it_nor_reach_the_next_request(
    transport: Transport, answer: bytes, excess: bytes
) -> None:
    async with Hostile(answering(answer + excess)) as engine:
        for count in (1, 2):
            response = await transport.handle_async_request(engine.get())
            assert response.status_code == 200
            assert await body_of(response) in (b"ok", b"hello world")
            assert isinstance(response.stream, BodyStream)
            assert len(response.stream.trailers) == (2 if answer is CHUNKED else 0)
            assert not response.extensions["reused"]
            assert len(engine.peers) == count


@pytest.fixture
def short_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.MAX_HEAD_BYTES == 65_536
    monkeypatch.setattr(client, "MAX_HEAD_BYTES", 4096)


@pytest.mark.usefixtures("short_heads")
async def test_a_head_may_be_as_long_as_the_limit_and_no_longer(transport: Transport) -> None:
    fits = b"HTTP/1.1 200 OK\r\nX: %s\r\nContent-Length: 2\r\n\r\n" % (b"x" * 3000)
    many = b"HTTP/1.1 200 OK\r\n%bContent-Length: 2\r\n\r\n" % (b"A: b\r\n" * 1000)
    async with Hostile(answering(fits + b"ok", many + b"ok")) as engine:
        response = await transport.handle_async_request(engine.get())
        assert await body_of(response) == b"ok"
        with pytest.raises(httpx.RemoteProtocolError, match="response head over 4096 bytes"):
            await transport.handle_async_request(engine.get())


@pytest.mark.usefixtures("short_heads")
async def test_a_long_head_leaves_room_for_the_framing_of_the_body(transport: Transport) -> None:
    head = b"HTTP/1.1 200 OK\r\nX: %s\r\nTransfer-Encoding: chunked\r\n\r\n" % (b"x" * 4000)
    parts = [head, b"2;", b"x" * 1000, b"\r\nok\r\n", b"0\r\n", b"X: y\r\n\r\n"]

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(*parts)

    async with Hostile(script) as engine:
        assert await body_of(await transport.handle_async_request(engine.get())) == b"ok"


@pytest.mark.usefixtures("short_heads")
async def test_a_short_head_with_a_long_body_in_one_read_is_no_long_head(transport: Transport) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n" + b"x" * 60000
    async with Hostile(answering(answer)) as engine:
        response = await transport.handle_async_request(engine.get())
        assert len(await body_of(response)) == 60000


@pytest.mark.parametrize(
    ("start", "endless"),
    [
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 1000),
        (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;", b"x" * 1000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n", b"A: b\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: ", b"x" * 1000),
    ],
)
async def test_a_head_or_framing_without_end_is_cut_off(
    transport: Transport, start: bytes, endless: bytes
) -> None:
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(start)
        while not peer.writer.transport.is_closing():
            await peer.send(endless * (5000 // len(endless)))
            sent += 5000

    async with Hostile(script) as engine:
        with pytest.raises(httpx.RemoteProtocolError, match="over 65536 bytes"):
            await body_of(await transport.handle_async_request(engine.get()))
    assert sent < 2 * 65536


async def test_a_chunked_answer_from_http_1_0_is_read_and_its_connection_closed(transport: Transport) -> None:
    answer = (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    )
    async with Hostile(answering(answer, OK)) as engine:
        assert await body_of(await transport.handle_async_request(engine.get())) == b"ok"
        after = await transport.handle_async_request(engine.get())
        assert not after.extensions["reused"]
        await body_of(after)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ],
)
async def test_an_engine_that_will_close_is_not_asked_again_on_that_connection(
    transport: Transport, head: bytes
) -> None:
    async with Hostile(answering(head, OK)) as engine:
        assert await body_of(await transport.handle_async_request(engine.get())) == b"ok"
        await engine.peers[0].left()
        assert await body_of(await transport.handle_async_request(engine.get())) == b"ok"
        assert len(engine.peers) == 2
