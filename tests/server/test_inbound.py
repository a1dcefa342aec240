"""Request bodies: joined once, limited, streamed with back-pressure, invited by 100 Continue."""

import asyncio
import tracemalloc
from time import monotonic

import pytest

from sidecar.server import wire
from sidecar.server.client import BodyTooLarge, Client, ClientGone
from sidecar.server.inbound import HIGH_WATER_BYTES
from tests.server.loopback import chunked, direct, get, post, serving, settled

ONE_READ_BYTES = 1 << 18
"""The most that one read of a transport brings (asyncio's; uvloop's is smaller)."""


async def counted(client: Client, limit_bytes: int = 1 << 26) -> None:
    """Answers with the body's length."""
    body = await client.read_body(limit_bytes)
    content = b"%d" % len(body)
    client.start(200, [], body_length=len(content))
    client.write(content)
    client.finish()


async def refuse_large(client: Client, limit_bytes: int) -> None:
    """Reads the body, or answers 413."""
    try:
        await counted(client, limit_bytes)
    except BodyTooLarge:
        client.start(413, [], body_length=0)
        client.finish()


async def test_a_large_body_arrives_whole() -> None:
    seen: list[bytes] = []

    async def application(client: Client) -> None:
        assert client.has_body
        seen.append(bytes(await client.read_body(1 << 26)))
        client.start(204, [], body_length=None)
        client.finish()

    body = bytes(range(256)) * 40_000
    async with serving(direct(application)) as stage, stage.caller() as caller:
        assert (await caller.ask(post(body))).status == 204
    assert seen == [body]


async def test_a_body_in_many_tiny_chunks_costs_about_its_own_size() -> None:
    head = post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    async with serving(direct(counted)) as stage, stage.caller() as caller:
        await caller.send(head + b"2\r\nab\r\n" * 10_000)
        await asyncio.sleep(0.01)
        tracemalloc.start()
        try:
            await caller.send(b"2\r\nab\r\n" * 90_000 + b"0\r\n\r\n")
            answer = await caller.answer()
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert answer.body == b"200000"
    assert (
        peak_bytes < 2_500_000
    )  # 630 KB of them what is sent here; an object per chunk would be 3.8 MB more


@pytest.mark.parametrize(
    ("asked", "length"), [(get(), 0), (post(b""), 0), (post(b"x" * 7, "Connection: close"), 7)]
)
async def test_a_body_is_what_its_framing_says(asked: bytes, length: int) -> None:
    async with serving(direct(counted)) as stage, stage.caller() as caller:
        assert (await caller.ask(asked)).body == b"%d" % length


@pytest.mark.parametrize("stated", [True, False])
async def test_a_body_over_the_limit_is_answered_while_the_client_still_sends(
    stated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "LINGER_S", 0.1)

    async def application(client: Client) -> None:
        await refuse_large(client, 100_000)

    size = 20_000_000
    length = b"Content-Length: %d" % size
    upload = post(b"").replace(b"Content-Length: 0", length) + bytes(size)
    if not stated:
        upload = post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + chunked(bytes(size))
    async with serving(direct(application)) as stage, stage.caller() as caller:
        sending = asyncio.create_task(caller.send(upload))
        answer = await caller.answer()
        assert (answer.status, answer.closes) == (413, True)
        assert await caller.closed()
        assert not sending.done()
        with pytest.raises(ConnectionError):  # only now
            await asyncio.wait_for(sending, 2)


async def test_a_body_over_the_limit_is_not_read_on_while_its_answer_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "LINGER_S", 0.05)
    gate = asyncio.Event()

    async def application(client: Client) -> None:
        with pytest.raises(BodyTooLarge):
            await client.read_body(100_000)
        await gate.wait()
        client.start(413, [], body_length=0)
        client.finish()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        upload = post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        sending = asyncio.create_task(caller.send(upload + chunked(bytes(20_000_000))))
        await asyncio.sleep(0.05)
        assert not sending.done()
        gate.set()
        assert (await caller.answer()).status == 413
        sending.cancel()


async def test_a_refused_upload_that_ends_soon_ends_the_connection_at_once() -> None:
    refused = asyncio.Event()
    gate = asyncio.Event()

    async def application(client: Client) -> None:
        with pytest.raises(BodyTooLarge):
            await client.read_body(10)
        refused.set()
        await gate.wait()
        client.start(413, [], body_length=0)
        client.finish()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        upload = post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + chunked(
            bytes(90_000)
        )
        await caller.send(upload[:200])
        await refused.wait()
        await caller.send(upload[200:-2])
        await asyncio.sleep(0.01)
        gate.set()
        assert (await caller.answer()).status == 413
        caller.half_close()
        begun_s = monotonic()
        await settled(lambda: not stage.connections)
        assert monotonic() - begun_s < 0.1


async def test_a_body_over_the_limit_that_is_there_already_keeps_the_connection() -> None:
    async def application(client: Client) -> None:
        await refuse_large(client, 5)

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(post(b"123456") + post(b"12345"))
        answers = [await caller.answer() for _ in range(2)]
    assert [(answer.status, answer.body) for answer in answers] == [(413, b""), (200, b"5")]


async def test_a_stream_gives_pieces_as_they_come_and_then_its_end() -> None:
    pieces: list[bytes] = []

    async def application(client: Client) -> None:
        async for piece in client.stream_body():
            pieces.append(piece)
        client.start(204, [], body_length=None)
        client.finish()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(post(b"onetwo")[:-3])
        await settled(lambda: pieces == [b"one"])
        await caller.send(b"two")
        assert (await caller.answer()).status == 204
    assert pieces == [b"one", b"two"]


async def test_an_answer_may_stream_while_its_request_does() -> None:
    async def application(client: Client) -> None:
        pieces = client.stream_body()
        first = await anext(pieces)
        client.start(200, [], body_length=None)
        client.write(first)
        async for piece in pieces:
            client.write(piece)
        client.finish()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(post(b"onetwo")[:-3])
        assert b"connection: close" not in await caller.until(b"one\r\n")
        await caller.send(b"two")
        assert await caller.until(b"0\r\n\r\n") == b"3\r\ntwo\r\n0\r\n\r\n"
        assert (await caller.ask(post(b"again"))).body == b"again"


async def test_a_slow_reader_holds_the_client_and_then_gets_everything() -> None:
    gate = asyncio.Event()
    size = 30_000_000
    got = 0

    async def application(client: Client) -> None:
        nonlocal got
        await gate.wait()
        async for piece in client.stream_body():
            got += len(piece)
        client.start(204, [], body_length=None)
        client.finish()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        sending = asyncio.create_task(caller.send(post(bytes(size))))
        await asyncio.sleep(0.05)
        [connection] = stage.connections
        assert connection._current.body._held_bytes <= HIGH_WATER_BYTES + ONE_READ_BYTES
        assert not sending.done()
        gate.set()
        assert (await caller.answer()).status == 204
        await sending
    assert got == size


async def test_100_continue_is_sent_when_the_body_is_wanted_and_not_before() -> None:
    gate = asyncio.Event()

    async def application(client: Client) -> None:
        await gate.wait()
        await counted(client)

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(post(b"abc", "Expect: 100-Continue")[:-3])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(caller.until(b"\r\n\r\n"), 0.02)
        gate.set()
        assert await caller.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await caller.send(b"abc")
        assert (await caller.answer()).body == b"3"


@pytest.mark.parametrize("expecting", [b"Expect: 100-continue\r\n", b""])
async def test_no_100_continue_for_a_body_that_is_there_or_a_client_that_does_not_ask(
    expecting: bytes,
) -> None:
    upload = post(b"abc").replace(b"\r\n\r\n", b"\r\n" + expecting + b"\r\n")
    async with serving(direct(counted)) as stage, stage.caller() as caller:
        assert (await caller.ask(upload)).status == 200


async def test_no_100_continue_when_the_answer_needs_no_body_or_the_body_is_too_large() -> None:
    async def application(client: Client) -> None:
        if client.target == b"/":
            client.start(200, [], body_length=0)
            client.finish()
        else:
            await refuse_large(client, 2)

    async with serving(direct(application)) as stage:
        for target, status in (("/", 200), ("/large", 413)):
            async with stage.caller() as caller:
                answer = await caller.ask(post(b"abc", "Expect: 100-continue", target=target)[:-3])
                assert (answer.status, answer.closes) == (status, True)
                assert await caller.closed()


async def test_a_reader_that_outlives_its_exchange_is_told() -> None:
    told: list[Exception] = []

    async def application(client: Client) -> None:
        async def read_on() -> None:
            try:
                while await client.next_piece():
                    pass
            except ClientGone as error:
                told.append(error)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read_on())
            await asyncio.sleep(0)
            client.start(200, [], body_length=0)
            client.finish()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        assert (await caller.ask(post(b"abc")[:-1])).status == 200
        assert await caller.closed()
    assert len(told) == 1


async def test_requests_behind_a_large_body_are_read_where_it_ends() -> None:
    body = bytes(range(256)) * 4_000
    seen: list[bytes] = []

    async def application(client: Client) -> None:
        seen.append(bytes(await client.read_body(1 << 26)))
        client.start(200, [], body_length=None)
        client.write(client.target)
        client.finish()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        first = post(body)
        for pause_at in (1_000, 100_000, len(first)):  # bytes with which the client stops for a moment
            await caller.send(first[:pause_at])
            await asyncio.sleep(0.01)
            await caller.send(first[pause_at:] + post(body[:70_000]) + get())
            assert [(await caller.answer()).status for _ in range(3)] == [200, 200, 200]
        assert len(stage.connections) == 1
    assert seen == [body, body[:70_000], b""] * 3


@pytest.mark.parametrize("held_bytes", [0, 70_000, 500_000])
async def test_a_client_that_leaves_within_a_large_body_is_noticed(held_bytes: int) -> None:
    lost = asyncio.Event()

    async def application(client: Client) -> None:
        try:
            await client.read_body(1 << 26)
        except asyncio.CancelledError:
            lost.set()
            raise

    async with serving(direct(application)) as stage:
        async with stage.caller() as caller:
            await caller.send(post(bytes(1_000_000))[: held_bytes + 100])
            await asyncio.sleep(0.02)
        async with asyncio.timeout(2):
            await lost.wait()
        await settled(lambda: not stage.connections)


async def test_a_client_that_announces_much_and_sends_little_holds_little_memory() -> None:
    async with serving(direct(counted)) as stage, stage.caller() as caller:
        head = post(b"").replace(b"Content-Length: 0", b"Content-Length: 60000000")
        tracemalloc.start()
        try:
            await caller.send(head + bytes(10_000))
            await asyncio.sleep(0.05)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak_bytes < 500_000


async def test_an_answer_within_a_large_body_ends_the_connection_and_not_its_answer() -> None:
    async def application(client: Client) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await client.read_body(1 << 26)
        client.start(200, [], body_length=2)
        client.write(b"no")
        client.finish()

    async with serving(direct(application)) as stage, stage.caller() as caller:
        await caller.send(post(bytes(1_000_000))[:200_000])
        answer = await caller.answer()
        assert (answer.status, answer.body, answer.closes) == (200, b"no", True)
