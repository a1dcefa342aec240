"""The heads that are refused before any application sees them, and those that are not."""

import asyncio
import json
import logging

import pytest

from sidecar.server.admission import CHUNKED, Refusal, admit
from sidecar.server.client import Client
from sidecar.server.limits import ClientLimits
from tests.server.loopback import Caller, direct, get, post, serving, settled

MAX_HEAD_BYTES = ClientLimits().header_bytes

Headers = list[tuple[bytes, bytes]]
HOST = (b"Host", b"a")
SMUGGLED = get("/smuggled")
TE = b"Transfer-Encoding: chunked"


def head(line: bytes, *fields: bytes, host: bytes | None = b"Host: a") -> bytes:
    lines = [line, *([host] if host is not None else []), *fields]
    return b"".join(each + b"\r\n" for each in lines) + b"\r\n"


def request(*fields: bytes, body: bytes = b"") -> bytes:
    return head(b"POST / HTTP/1.1", *fields) + body


REFUSED = {
    # Two opinions about where the body ends (RFC 9112 6.3).
    "length and chunks": request(b"Content-Length: 4", TE, body=b"0\r\n\r\n"),
    "chunks and length": request(TE, b"Content-Length: 4", body=b"0\r\n\r\n"),
    "two lengths": request(b"Content-Length: 3", b"Content-Length: 4", body=b"abcd"),
    "the same length twice": request(b"Content-Length: 3", b"Content-Length: 3", body=b"abc"),
    "a list of lengths": request(b"Content-Length: 3, 3", body=b"abc"),
    "a signed length": request(b"Content-Length: +3", body=b"abc"),
    "a negative length": request(b"Content-Length: -3", body=b"abc"),
    "a hexadecimal length": request(b"Content-Length: 0x3", body=b"abc"),
    "an empty length": request(b"Content-Length:"),
    "a length in two words": request(b"Content-Length: 1 2", body=b"abc"),
    "a length beyond 64 bits": request(b"Content-Length: 18446744073709551617", body=b"a"),
    "gzip and chunked": request(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
    "chunked and gzip": request(b"Transfer-Encoding: chunked, gzip", body=b"0\r\n\r\n"),
    "chunked twice in a line": request(b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n"),
    "chunked twice in two lines": request(TE, TE, body=b"0\r\n\r\n"),
    "gzip and chunked in two lines": request(b"Transfer-Encoding: gzip", TE, body=b"0\r\n\r\n"),
    "an empty item before chunked": request(b"Transfer-Encoding: ,chunked", body=b"0\r\n\r\n"),
    "xchunked": request(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
    "identity": request(b"Transfer-Encoding: identity"),
    "an empty coding": request(b"Transfer-Encoding:", body=b"0\r\n\r\n"),
    "a quoted coding": request(b'Transfer-Encoding: "chunked"', body=b"0\r\n\r\n"),
    "a coding after a vertical tab": request(b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n"),
    "a coding with a parameter": request(b"Transfer-Encoding: chunked;q=1", body=b"0\r\n\r\n"),
    "chunks in HTTP/1.0": head(b"POST / HTTP/1.0", TE) + b"0\r\n\r\n",
    "another coding before an upgrade": request(
        b"Connection: upgrade", b"Upgrade: h2c", b"Transfer-Encoding: gzip", body=b"0\r\n\r\n"
    ),
    # Lines that other parsers end elsewhere (RFC 9112 2.2, 5.1, 5.2).
    "a folded field": request(b"X: a", b" b"),
    "a folded coding": request(b"Transfer-Encoding:", b" chunked", body=b"0\r\n\r\n"),
    "a bare LF after a field": b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    "a bare LF after the request line": b"GET / HTTP/1.1\nHost: a\r\n\r\n",
    "bare LFs only": b"GET / HTTP/1.1\nHost: a\n\n",
    "a bare CR in a value": request(b"X: a\rContent-Length: 5"),
    "a space before the colon": request(b"Content-Length : 3", body=b"abc"),
    "a tab before the colon": request(b"Transfer-Encoding\t: chunked", body=b"0\r\n\r\n"),
    "a space before the first field": b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "a NUL in a value": request(b"X: a\0b"),
    "a control character in a value": request(b"X: a\x01b"),
    "a NUL in a name": request(b"X\0: a"),
    "a field without a name": request(b": a"),
    "a field without a colon": request(b"X"),
    "a name with a bracket": request(b"X(a): b"),
    # Chunks (RFC 9112 7.1).
    "a chunk size that is no number": request(TE, body=b"x\r\nabc\r\n0\r\n\r\n"),
    "a chunk size with a sign": request(TE, body=b"+3\r\nabc\r\n0\r\n\r\n"),
    "a chunk size with 0x": request(TE, body=b"0x3\r\nabc\r\n0\r\n\r\n"),
    "a chunk size beyond 64 bits": request(TE, body=b"10000000000000003\r\nabc\r\n0\r\n\r\n"),
    "a space after a chunk size": request(TE, body=b"3 \r\nabc\r\n0\r\n\r\n"),
    "a chunk longer than its size": request(TE, body=b"3\r\nabcd\r\n0\r\n\r\n"),
    "a bare LF after a chunk size": request(TE, body=b"3\nabc\r\n0\r\n\r\n"),
    "a bare LF after a chunk": request(TE, body=b"3\r\nabc\n0\r\n\r\n"),
    "a bare LF in a chunk extension": request(TE, body=b"3;a\nabc\r\n0\r\n\r\n"),
    "a length among the trailers": request(TE, body=b"0\r\nContent-Length: 5\r\n\r\n"),
    "a coding among the trailers": request(TE, body=b"0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    # The request line (RFC 9112 3).
    "HTTP/2.0": head(b"GET / HTTP/2.0"),
    "HTTP/0.9 with a version": head(b"GET / HTTP/0.9"),
    "HTTP/0.9 without a version": b"GET /\r\n\r\n",
    "HTTP/1.2": head(b"GET / HTTP/1.2"),
    "an HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a method in lower case": head(b"get / HTTP/1.1"),
    "an unknown method": head(b"BREW / HTTP/1.1"),
    "a tunnel to anywhere": head(b"CONNECT a:443 HTTP/1.1"),
    "a target without a slash": head(b"GET a HTTP/1.1"),
    "a fragment": head(b"GET /v1/chat/completions#x HTTP/1.1"),
    "a fragment after a host": head(b"GET http://a/v1#x HTTP/1.1"),
    "an asterisk that is no OPTIONS": head(b"GET * HTTP/1.1"),
    "another scheme": head(b"GET ftp://a/ HTTP/1.1"),
    "credentials in the target": head(b"GET http://user@a/ HTTP/1.1"),
    "no host in the target": head(b"GET http:/// HTTP/1.1"),
    "a raw high byte in the target": head(b"GET /\xff HTTP/1.1"),
    "a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40) + b"\r\n\r\n",
    # Host (RFC 9112 3.2).
    "no host": head(b"GET / HTTP/1.1", host=None),
    "two hosts": head(b"GET / HTTP/1.1", b"Host: b"),
    "two equal hosts": head(b"GET / HTTP/1.1", b"host: a"),
    "a host with a space": head(b"GET / HTTP/1.1", host=b"Host: a b"),
    "a host with a path": head(b"GET / HTTP/1.1", host=b"Host: a/b"),
    "a host with credentials": head(b"GET / HTTP/1.1", host=b"Host: u@a"),
    "a host with a high byte": head(b"GET / HTTP/1.1", host=b"Host: \xff"),
    "a list of hosts in HTTP/1.0": head(b"GET / HTTP/1.0", b"Host: b"),
}

OTHERWISE = {
    "a field of 64 KiB": (431, request(b"X: " + b"a" * MAX_HEAD_BYTES)),
    "many fields of 64 KiB in all": (431, request(*[b"X: " + b"a" * 60] * 1100)),
    "a target of 64 KiB": (431, head(b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1")),
    "an unknown expectation": (417, request(b"Expect: tea", b"Content-Length: 3", body=b"abc")),
    "two expectations": (417, request(b"Expect: 100-continue", b"Expect: tea")),
}


async def _check_refused(caller: Caller, status: int) -> None:
    answer = await caller.answer()
    assert answer.status == status
    assert answer.closes
    assert answer.get(b"x-sidecar-error") == str(status).encode()
    assert answer.get(b"content-type") == b"application/json"
    error = json.loads(answer.body)
    assert error["error"] == {key: error[key] for key in ("message", "type", "param", "code")}
    assert (error["object"], error["code"], error["param"]) == ("error", status, None)
    assert await caller.closed()


@pytest.mark.parametrize(
    ("status", "wire"),
    [*((400, wire) for wire in REFUSED.values()), *OTHERWISE.values()],
    ids=[*REFUSED, *OTHERWISE],
)
async def test_a_malformed_request_is_refused_and_nothing_after_it_is_served(
    status: int, wire: bytes
) -> None:
    seen: list[bytes] = []

    async def application(client: Client) -> None:
        seen.append(client.target)

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(wire + SMUGGLED)
        await _check_refused(caller, status)
    assert seen == []


@pytest.mark.parametrize(
    ("wire", "status", "message"),
    [
        (REFUSED["two hosts"], 400, "several host fields"),
        (b"GET /secret HTTP/1.1\r\nX secret\r\n\r\n", 400, "malformed request: Invalid header token"),
        (request(b"Expect: secret"), 417, "unsupported expectation"),
        (
            request(b"X: " + b"secret" * MAX_HEAD_BYTES),
            431,
            "request head, chunk extension or trailers over 65536 bytes (--max-header-bytes)",
        ),
    ],
)
async def test_a_refusal_is_logged_once_without_a_byte_of_the_request(
    wire: bytes, status: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sidecar.server")
    async with serving(direct(_unexpected)) as stage, stage.caller() as caller:
        host, port = caller.sock.getsockname()
        await caller.send(wire)
        await _check_refused(caller, status)
    [record] = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == ("sidecar.server", "INFO", "refused")
    assert vars(record)["fields"] == {"status": status, "reason": message, "client": f"{host}:{port}"}


async def test_a_malformed_request_behind_a_good_one_is_refused_after_its_answer() -> None:
    async def application(client: Client) -> None:
        client.start(200, [], body_length=len(client.target))
        client.write(client.target)
        client.finish()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(get("/one") + get("/two") + REFUSED["two hosts"] + SMUGGLED)
        assert [(await caller.answer()).body for _ in range(2)] == [b"/one", b"/two"]
        await _check_refused(caller, 400)


async def test_a_pipelined_request_with_a_malformed_body_is_refused_unseen() -> None:
    gate = asyncio.Event()
    seen: list[bytes] = []

    async def application(client: Client) -> None:
        seen.append(client.target)
        await gate.wait()
        client.start(204, [], body_length=None)
        client.finish()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(get("/one") + request(TE, body=b"x\r\n") + SMUGGLED)
        await settled(lambda: seen)
        gate.set()
        assert (await caller.answer()).status == 204
        await _check_refused(caller, 400)
    assert seen == [b"/one"]


async def test_a_malformed_chunk_that_comes_late_ends_the_running_request_with_a_400() -> None:
    cancelled: list[bytes] = []
    reading = asyncio.Event()

    async def application(client: Client) -> None:
        reading.set()
        try:
            await client.read_body(1000)
        except asyncio.CancelledError:
            cancelled.append(client.target)
            raise

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(request(TE, body=b"3\r\nabc\r\n"))
        await reading.wait()
        await caller.send(b"x\r\n" + SMUGGLED)
        await _check_refused(caller, 400)
    assert cancelled == [b"/"]


async def test_a_malformed_chunk_after_the_answer_began_cuts_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sidecar.server")

    async def application(client: Client) -> None:
        pieces = client.stream_body()
        client.start(200, [], body_length=None)
        async for piece in pieces:
            client.write(piece)
        client.finish()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(request(TE, body=b"3\r\nabc\r\n"))
        assert (await caller.until(b"abc\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        await caller.send(b"x\r\n" + SMUGGLED)
        assert await caller.closed()
    assert [record.getMessage() for record in caplog.records] == ["refused"]


@pytest.mark.parametrize(
    "start", [b"GET /", b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b"GET / HTTP/1.1\r\nHost: a\r\nX-", b"\r\n"]
)
async def test_a_head_that_never_ends_is_refused_at_64_kib(start: bytes) -> None:
    filler = b"\r\n" if start == b"\r\n" else b"a"
    async with serving(direct(_unexpected)) as stage, stage.caller() as caller:
        await caller.send(start)
        for _ in range(3):
            await caller.send(filler * (MAX_HEAD_BYTES // len(filler) // 2))
        await _check_refused(caller, 431)


@pytest.mark.parametrize("start", [b"0\r\nX: ", b"1;"])
async def test_trailers_and_chunk_extensions_that_never_end_are_refused_at_64_kib(start: bytes) -> None:
    reading = asyncio.Event()

    async def application(client: Client) -> None:
        reading.set()
        await client.read_body(1000)

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(request(TE))
        await reading.wait()
        await caller.send(start)
        for _ in range(4):
            await caller.send(b"a" * (MAX_HEAD_BYTES // 2))
        await _check_refused(caller, 431)


async def test_a_head_just_under_the_limit_is_served_behind_a_large_body() -> None:
    async def application(client: Client) -> None:
        await client.read_body(1 << 20)
        client.start(204, [], body_length=None)
        client.finish()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        big = get("/", "X: " + "a" * (MAX_HEAD_BYTES - 200))
        wire = post(bytes(200_000)) + big
        await caller.send(wire[:230_000], wire[230_000:])
        assert [(await caller.answer()).status for _ in range(2)] == [204, 204]


async def _unexpected(client: Client) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("target", "plain"),
    [
        (b"http://a.example:80/v1/models?x=1", b"/v1/models?x=1"),
        (b"HTTPS://a.example", b"/"),
        (b"http://[::1]:8000?x=%20", b"/?x=%20"),
    ],
)
def test_an_absolute_target_becomes_path_and_query_and_its_authority_the_host(
    target: bytes, plain: bytes
) -> None:
    authority = target.partition(b"//")[2].partition(b"/")[0].partition(b"?")[0]
    admitted = admit(b"GET", target, "1.1", [(b"X", b"1"), (b"hOST", b"other")], upgrade=False)
    assert admitted.target == plain
    assert admitted.headers == [(b"X", b"1"), (b"hOST", authority)]


@pytest.mark.parametrize("target", [b"/", b"//v1/x", b'/a?b=c&d=%00{}|^`"', b"/%2e%2e/;x=1"])
def test_other_targets_stay_as_they_are(target: bytes) -> None:
    assert admit(b"GET", target, "1.1", [HOST], upgrade=False).target == target
    assert admit(b"OPTIONS", b"*", "1.1", [HOST], upgrade=False).target == b"*"


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ([], 0),
        ([(b"Content-Length", b"0")], 0),
        ([(b"content-length", b"007  ")], 7),
        ([(b"Transfer-encoding", b"Chunked")], CHUNKED),
    ],
)
def test_the_length_of_a_body_is_read_off_its_head(fields: Headers, length: int) -> None:
    assert admit(b"POST", b"/", "1.1", [HOST, *fields], upgrade=False).body_length == length


def test_a_host_may_be_empty_and_in_http_1_0_absent() -> None:
    assert admit(b"GET", b"/", "1.1", [(b"Host", b"")], upgrade=False).target == b"/"
    assert admit(b"GET", b"/", "1.0", [], upgrade=False).target == b"/"


@pytest.mark.parametrize(
    ("version", "value", "expects"), [("1.1", b"100-Continue ", True), ("1.0", b"100-continue", False)]
)
def test_100_continue_is_an_expectation_of_http_1_1_only(version: str, value: bytes, expects: bool) -> None:
    assert (
        admit(b"POST", b"/", version, [HOST, (b"expect", value)], upgrade=False).expects_continue is expects
    )


@pytest.mark.parametrize(
    ("method", "fields", "wanted"),
    [
        (b"GET", [(b"Upgrade", b"WebSocket")], True),
        (b"GET", [(b"Upgrade", b"h2c")], False),
        (b"GET", [(b"Upgrade", b"websocket"), (b"Upgrade", b"h2c")], False),
        (b"POST", [(b"Upgrade", b"websocket")], False),
        (b"GET", [(b"Upgrade", b"websocket"), (b"Content-Length", b"3")], False),
    ],
)
def test_only_a_websocket_handshake_asks_for_a_tunnel(method: bytes, fields: Headers, wanted: bool) -> None:
    assert admit(method, b"/", "1.1", [HOST, *fields], upgrade=True).wants_tunnel is wanted
    assert not admit(method, b"/", "1.1", [HOST, *fields], upgrade=False).wants_tunnel


def test_a_refusal_says_its_status_and_reason() -> None:
    with pytest.raises(Refusal, match="several host fields") as caught:
        admit(b"GET", b"/", "1.1", [HOST, HOST], upgrade=False)
    assert caught.value.status == 400
