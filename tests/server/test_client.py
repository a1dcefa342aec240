"""Answers: framing, verbatim heads, cuts, and what a client asked shown as it was sent."""

import asyncio
import time
from collections.abc import Callable

import pytest

from sidecar.server.client import Client, ClientGone
from tests.server.loopback import Answer, chunked, direct, get, post, serving

Headers = list[tuple[bytes, bytes]]


async def asked(application: Callable[[Client], None], wire: bytes, *, bodiless: bool = False) -> Answer:
    """The answer that a synchronous application gives to one request, and that the connection then keeps."""

    async def serve(client: Client) -> None:
        application(client)

    async with serving(direct(serve)) as stage, stage.caller() as caller:
        return await caller.ask(wire, bodiless=bodiless)


def says(
    status: int, headers: Headers, body: bytes = b"", *, length: int | None = None
) -> Callable[[Client], None]:
    """An application that gives this answer."""

    def application(client: Client) -> None:
        client.start(status, headers, body_length=length)
        client.write(body)
        client.finish()

    return application


@pytest.mark.parametrize("waits", [False, True], ids=["with the head", "after the head"])
async def test_pieces_are_counted_and_the_first_one_is_timed(*, waits: bool) -> None:
    seen: list[tuple[int, int, float | None]] = []

    async def serve(client: Client) -> None:
        client.start(200, [], body_length=None)
        if waits:
            await asyncio.sleep(0.02)  # the head leaves alone
        seen.append((client.writes, client.sent_bytes, client.first_byte_s))
        before_s = time.monotonic()
        for piece in (b"one", b"", b"three"):
            client.write(piece)
        assert client.first_byte_s is not None
        assert before_s <= client.first_byte_s <= time.monotonic()
        seen.append((client.writes, client.sent_bytes, None))
        client.finish()

    async with serving(direct(serve)) as stage, stage.caller() as caller:
        assert (await caller.ask(get())).body == b"onethree"
    assert seen == [(0, 0, None), (2, 8, None)]


async def test_a_request_is_shown_as_it_was_sent() -> None:
    seen: list[Client] = []
    before_s = time.monotonic()

    def application(client: Client) -> None:
        seen.append(client)
        says(204, [])(client)

    fields = b"hOsT: a\r\nX-Twice: 1\r\nx-twice: 2\r\nX-Raw: \xff\xe9\r\nX-Empty:\r\n"
    await asked(application, b"PUT /a%20b?c=d&e HTTP/1.1\r\n" + fields + b"\r\n")
    [client] = seen
    assert (client.method, client.target, client.http_version) == (b"PUT", b"/a%20b?c=d&e", "1.1")
    assert client.headers == [
        (b"hOsT", b"a"),
        (b"X-Twice", b"1"),
        (b"x-twice", b"2"),
        (b"X-Raw", b"\xff\xe9"),
        (b"X-Empty", b""),
    ]
    assert client.peer is not None
    assert client.peer[0] == "127.0.0.1"
    assert before_s < client.received_at_s < time.monotonic()
    assert (client.has_body, client.tunnel_requested) == (False, False)


async def test_trailers_of_a_request_are_no_fields_of_it() -> None:
    seen: list[Client] = []

    async def application(client: Client) -> None:
        seen.append(client)
        assert await client.read_body(100) == b"abc"
        says(204, [])(client)

    wire = post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.ask(wire + chunked(b"abc", trailers=b"Authorization: x\r\n"))
        await caller.ask(get("/", "X-Next: 1"))
    assert seen[0].headers == [(b"Host", b"a"), (b"Transfer-Encoding", b"chunked")]
    assert seen[1].headers == [(b"Host", b"a"), (b"X-Next", b"1")]


async def test_an_answer_s_head_goes_out_verbatim() -> None:
    headers = [
        (b"X-b", b"2"),
        (b"x-B", b"1"),
        (b"Set-Cookie", b"a"),
        (b"Set-Cookie", b"b"),
        (b"X-Raw", b"\xff"),
    ]

    def application(client: Client) -> None:
        client.start(299, headers, reason=b"Quite \xe9", body_length=0)
        client.finish()

    async def serve(client: Client) -> None:
        application(client)

    async with serving(direct(serve)) as stage, stage.caller() as caller:
        await caller.send(get())
        head = await caller.until(b"\r\n\r\n")
    lines = [
        b"HTTP/1.1 299 Quite \xe9",
        *(name + b": " + value for name, value in headers),
        b"content-length: 0",
    ]
    assert head == b"\r\n".join(lines) + b"\r\n\r\n"


async def test_a_body_of_unknown_length_goes_out_in_the_chunks_it_was_written_in() -> None:
    def application(client: Client) -> None:
        client.start(200, [], body_length=None)
        client.write(b"one")
        client.write(b"")
        for size_bytes in (300, 1023, 1024, 70_000):
            client.write(bytes(size_bytes))
        client.finish([(b"X-Trailer", b"t")])

    async def serve(client: Client) -> None:
        application(client)

    async with serving(direct(serve)) as stage, stage.caller() as caller:
        await caller.send(get())
        assert await caller.until(b"\r\n\r\n") == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        sizes = ((b"12c", 300), (b"3ff", 1023), (b"400", 1024), (b"11170", 70_000))
        chunks = b"".join(line + b"\r\n" + bytes(size_bytes) + b"\r\n" for line, size_bytes in sizes)
        expected = b"3\r\none\r\n" + chunks + b"0\r\nX-Trailer: t\r\n\r\n"
        assert await caller.exactly(len(expected)) == expected
        assert (await caller.ask(get())).trailers == b"X-Trailer: t\r\n"


async def test_a_length_that_the_fields_state_is_not_stated_again() -> None:
    answer = await asked(says(200, [(b"Content-LENGTH", b"2")], b"ab", length=2), get())
    assert answer.headers == [(b"Content-LENGTH", b"2")]
    assert answer.body == b"ab"


async def test_a_head_leaves_before_the_body_is_there() -> None:
    gate = asyncio.Event()

    async def application(client: Client) -> None:
        client.start(200, [], body_length=2)
        await gate.wait()
        client.write(b"ab")
        client.finish()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(get())
        assert await caller.until(b"\r\n\r\n") == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
        gate.set()
        assert await caller.exactly(2) == b"ab"


@pytest.mark.parametrize("length", [None, 5])
@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_answers_without_a_body_get_no_framing_and_keep_their_own(
    method: str, status: int, length: int | None
) -> None:
    async def application(client: Client) -> None:
        client.start(status, [(b"Content-Length", b"5")] if length else [], body_length=length)
        client.write(b"never")
        client.finish()

    wire = get().replace(b"GET", method.encode())
    async with serving(direct(application)) as stage, stage.caller() as caller:
        for _ in range(2):
            answer = await caller.ask(wire, bodiless=True)
            assert answer.status == status
            assert answer.headers == ([(b"Content-Length", b"5")] if length else [])


async def test_an_http_1_0_client_gets_an_unknown_length_by_the_end_of_the_connection() -> None:
    def application(client: Client) -> None:
        client.start(200, [], body_length=None)
        client.write(b"one ")
        client.write(b"two")
        client.finish([(b"x", b"dropped")])

    answer = await asked(application, b"GET / HTTP/1.0\r\n\r\n")
    assert (answer.headers, answer.body) == ([(b"connection", b"close")], b"one two")


async def test_an_application_can_close_the_connection() -> None:
    async def application(client: Client) -> None:
        says(200, [(b"Connection", b"Close")], b"x", length=1)(client)

    async with serving(direct(application)) as stage, stage.caller() as caller:
        answer = await caller.ask(get())
        assert answer.headers == [(b"Connection", b"Close"), (b"content-length", b"1")]
        assert await caller.closed()


@pytest.mark.parametrize(("started", "length"), [(False, None), (True, None), (True, 100)])
async def test_a_dropped_answer_is_seen_as_a_cut_after_what_was_written(
    started: bool, length: int | None
) -> None:
    async def application(client: Client) -> None:
        if started:
            client.start(200, [], body_length=length)
            client.write(b"data: error")
        client.drop()
        client.drop()
        client.write(b"late")
        client.finish()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(get())
        if started:
            answer = await caller.answer()
            assert not answer.whole
            assert answer.body == b"data: error"
        assert await caller.closed()


async def test_a_dropped_answer_without_length_is_seen_as_a_reset() -> None:
    async def application(client: Client) -> None:
        client.start(200, [], body_length=None)
        client.write(bytes(100_000))
        await asyncio.sleep(0)
        client.drop()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(b"GET / HTTP/1.0\r\n\r\n")
        assert await caller.reset()


async def test_an_answer_of_which_nothing_has_left_can_be_taken_back_and_another_given() -> None:
    def application(client: Client) -> None:
        client.start(200, [(b"x-first", b"1")], body_length=None)
        assert client.retract()
        client.start(502, [(b"x-second", b"2")], body_length=2)
        client.write(b"no")
        assert not client.retract()
        client.finish()

    answer = await asked(application, get())
    assert (answer.status, answer.body) == (502, b"no")
    assert answer.headers == [(b"x-second", b"2"), (b"content-length", b"2")]


async def test_a_head_that_has_left_by_itself_is_not_taken_back() -> None:
    async def application(client: Client) -> None:
        client.start(200, [], body_length=None)
        await asyncio.sleep(0.01)
        assert not client.retract()
        client.drop()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(get())
        assert (await caller.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        assert await caller.closed()


async def test_a_head_without_a_body_yet_is_not_sent_when_the_answer_is_dropped() -> None:
    async def application(client: Client) -> None:
        client.start(200, [], body_length=0)
        client.drop()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(get())
        assert await caller.closed()


def _twice(client: Client) -> None:
    client.start(200, [], body_length=None)
    client.start(200, [], body_length=None)


def _too_much(client: Client) -> None:
    client.start(200, [], body_length=1)
    client.write(b"ab")


def _too_little(client: Client) -> None:
    client.start(200, [], body_length=2)
    client.write(b"a")
    client.finish()


@pytest.mark.parametrize(
    ("misuse", "error"),
    [
        (lambda client: client.write(b"x"), RuntimeError),
        (lambda client: client.finish(), RuntimeError),
        (_twice, RuntimeError),
        (_too_much, ValueError),
        (_too_little, RuntimeError),
        (says(200, [(b"Content-Length", b"1")]), ValueError),
        (says(200, [(b"Content-Length", b"1")], length=2), ValueError),
        (says(200, [(b"Transfer-Encoding", b"chunked")]), ValueError),
        (says(200, [(b"X", b"a\r\nY: b")], length=0), ValueError),
        (says(200, [(b"X\n", b"a")], length=0), ValueError),
        (says(200, [(b"X", b"a\rY: b")], length=0), ValueError),
        (says(200, [(b"X", b"\0")], length=0), ValueError),
    ],
)
async def test_misuse_is_an_error_and_never_a_wrong_answer(
    misuse: Callable[[Client], None], error: type[Exception]
) -> None:
    caught: list[Exception] = []

    async def application(client: Client) -> None:
        try:
            misuse(client)
        except Exception as problem:
            caught.append(problem)
            client.fail()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(get())
        wire = await caller.rest()
    assert isinstance(caught[0], error)
    assert wire == b"" or wire.startswith(b"HTTP/1.1 500 ") or wire.endswith(b"content-length: 2\r\n\r\na")


async def test_an_unanswered_upload_closes_the_connection_and_the_rest_is_no_request() -> None:
    seen: list[bytes] = []

    async def application(client: Client) -> None:
        seen.append(client.target)
        says(200, [], b"early", length=5)(client)

    async with serving(direct(application)) as stage, stage.caller() as caller:
        answer = await caller.ask(post(b"x" * 10, target="/1")[:-5])
        assert (answer.body, answer.closes) == (b"early", True)
        await caller.send(get("/smuggled"))
        assert await caller.closed()
    assert seen == [b"/1"]


async def test_a_body_that_has_arrived_unread_keeps_the_connection() -> None:
    async def application(client: Client) -> None:
        says(200, [], client.target, length=2)(client)

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(post(b"unread", target="/1") + get("/2"))
        assert [(await caller.answer()).body for _ in range(2)] == [b"/1", b"/2"]


async def test_an_ignored_upgrade_is_served_with_its_body() -> None:
    async def application(client: Client) -> None:
        body = await client.read_body(100)
        says(200, [], bytes(body), length=len(body))(client)

    lines = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA")
    in_chunks = post(b"", "Transfer-Encoding: chunked", *lines).replace(b"Content-Length: 0\r\n", b"")
    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(post(b"one", *lines) + get("/", *lines))
        await caller.send(in_chunks + chunked(b"t", b"wo") + post(b"three"))
        assert [(await caller.answer()).body for _ in range(4)] == [b"one", b"", b"two", b"three"]
        await caller.send(post(b"four", *lines)[:-2])
        await asyncio.sleep(0.005)
        await caller.send(b"ur" + get("/"))
        assert [(await caller.answer()).body for _ in range(2)] == [b"four", b""]


async def test_an_ignored_upgrade_of_a_malformed_body_is_refused() -> None:
    async def application(client: Client) -> None:
        await client.read_body(100)

    lines = ("Connection: Upgrade", "Upgrade: h2c", "Transfer-Encoding: chunked")
    async with serving(direct(application)) as stage, stage.caller() as caller:
        wire = post(b"", *lines).replace(b"Content-Length: 0\r\n", b"") + b"x\r\n"
        assert (await caller.ask(wire + get("/smuggled"))).status == 400
        assert await caller.closed()


async def test_nothing_can_be_taken_over_once_the_client_is_gone() -> None:
    errors: list[Exception] = []

    async def application(client: Client) -> None:
        client.drop()
        try:
            client.take_over()
        except ClientGone as error:
            errors.append(error)

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(get())
        assert await caller.closed()
    assert len(errors) == 1


async def test_further_headers_are_made_when_the_answer_s_head_is() -> None:
    def application(client: Client) -> None:
        told: Headers = [(b"X-Also", b"early")]
        client.also = lambda: told
        told[0] = (b"X-Also", b"late")
        says(200, [(b"X-Own", b"1")], b"a", length=1)(client)

    answer = await asked(application, get())
    assert [(name, value) for name, value in answer.headers if name.lower().startswith(b"x-")] == [
        (b"X-Own", b"1"),
        (b"X-Also", b"late"),
    ]
