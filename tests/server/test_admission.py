"""The heads that are refused before any application sees them, and those that are not."""

import asyncio
import json
import logging

import pytest

from sidecar.server.admission import CHUNKED, Refusal, admit
from sidecar.server.client import Client
from sidecar.server.limits import ClientLimits
from tests.server.corpus import OTHERWISE, REFUSED, TE, request
from tests.server.loopback import Caller, direct, get, post, serving, settled

MAX_HEAD_BYTES = ClientLimits().header_bytes

Headers = list[tuple[bytes, bytes]]
HOST = (b"Host", b"a")
SMUGGLED = get("/smuggled")


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
