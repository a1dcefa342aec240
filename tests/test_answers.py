"""What comes back to the client: answers as engines sent them, and errors for those that never came."""

from __future__ import annotations

import asyncio
import socket
from time import monotonic

import pytest

from sidecar.api import APIS, Api
from tests.engines import Answer, Got, complete, prefilled, scripted
from tests.serving import BODY, CHAT, PREFILLER, Said, post, read_answer, serving

MESSAGES = "/v1/messages"


def closed_port() -> int:
    """A port that refuses connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_everything_else_passes_to_the_decoder_unread() -> None:
    async with scripted() as engine, serving(engine.port) as sidecar:
        answer = await sidecar.ask(
            b"PUT /v1/../x//y?a=%20b&a HTTP/1.1\r\nHost: h\r\n"
            b"X-B: 1\r\nx-b: 2\r\nContent-Length: 3\r\n\r\n{]\xff"
        )

        got = engine.last
        assert (answer.status, got.method, got.target, got.body) == (
            200,
            "PUT",
            "/v1/../x//y?a=%20b&a",
            b"{]\xff",
        )
        assert got.headers == [
            ("Host", f"localhost:{engine.port}"),
            ("X-B", "1"),
            ("x-b", "2"),
            ("Content-Length", "3"),
        ]


@pytest.mark.parametrize("path", ["//v1/chat/completions", "/v1/chat/completions/", "/v1/./chat/completions"])
async def test_a_path_that_cleans_to_a_routed_one_is_routed_and_forwarded_clean(path: str) -> None:
    async with scripted() as engine, serving(engine.port) as sidecar:
        assert (await sidecar.post(path + "?x=//", b"[]")).status == 400
        await sidecar.post(path + "?x=//")
        assert engine.last.target == CHAT + "?x=//"


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
@pytest.mark.parametrize("spelling", ["/%s/", "/.%s", "%s/x/..", "%s"])
async def test_every_routed_path_is_clean_on_both_legs_and_keeps_its_query(api: Api, spelling: str) -> None:
    path = api.path.decode()
    async with scripted() as engine, scripted(prefilled) as prefiller, serving(engine.port) as sidecar:
        await sidecar.post(
            spelling % path + "?a=%20/..&b?", headers=[("x-prefiller-host-port", prefiller.netloc)]
        )

        assert (prefiller.last.target, engine.last.target) == (path + "?a=%20/..&b?",) * 2


@pytest.mark.parametrize(("legacy", "taken"), [("{one}", 1), ("", 2), (" ", 2), (None, 2)])
async def test_the_new_header_is_trusted_only_without_the_legacy_one(legacy: str | None, taken: int) -> None:
    async with scripted() as engine, scripted(prefilled) as one, scripted(prefilled) as two:
        headers = [("X-LLM-D-Prefiller-Host-Port", two.netloc)]
        if legacy is not None:
            headers.append(("x-prefiller-host-port", legacy.format(one=one.netloc)))
        async with serving(engine.port) as sidecar:
            await sidecar.post(headers=headers)

        assert (len(one.requests), len(two.requests)) == (taken == 1, taken == 2)


async def test_routing_headers_leave_on_no_path() -> None:
    names = [
        "x-prefiller-host-port",
        "x-llm-d-prefiller-host-port",
        "x-encoder-hosts-ports",
        "x-llm-d-encoder-hosts-ports",
        "x-kv-cache-source-host-port",
        "x-llm-d-kv-cache-source-host-port",
        "x-data-parallel-host-port",
    ]
    async with scripted() as engine, serving(engine.port) as sidecar:
        for path in ("/v1/models", "/v1/embeddings", "/v1/chat/completions/render"):
            await sidecar.post(path, headers=[(name, "127.0.0.1:1") for name in names])
            assert [name for name, _ in engine.last.headers if name.lower().startswith("x-")] == []


async def test_health_is_answered_here() -> None:
    async with serving(closed_port()) as sidecar:
        assert (await sidecar.ask(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")).status == 200


async def test_an_answer_goes_back_as_it_was_sent() -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.raw(
            b"HTTP/1.1 418 I am a teapot\r\nX-One: 1\r\nset-cookie: a=1\r\n"
            b"x-one: \xe9\r\nSet-Cookie: b=2\r\n"
            b"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
            b"Content-Length: 2\r\n\r\nhi"
        )

    async with scripted(script) as engine, serving(engine.port) as sidecar:
        answer = await sidecar.post()

        assert (answer.status, answer.reason, answer.body, answer.whole) == (
            418,
            "I am a teapot",
            b"hi",
            True,
        )
        assert answer.headers == [
            ("X-One", "1"),
            ("set-cookie", "a=1"),
            ("x-one", "\xe9"),
            ("Set-Cookie", "b=2"),
            ("Content-Length", "2"),
        ]


@pytest.mark.parametrize("status", [204, 304])
async def test_bodiless_answers_stay_bodiless(status: int) -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.raw(b"HTTP/1.1 %d None\r\nx-a: b\r\n\r\n" % status)

    async with scripted(script) as engine, serving(engine.port) as sidecar:
        answer = await sidecar.ask(b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n")

        assert (answer.status, answer.headers, answer.body) == (status, [("x-a", "b")], b"")


async def test_an_empty_answer_keeps_its_zero_length() -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.json(b"")

    async with scripted(script) as engine, serving(engine.port) as sidecar:
        answer = await sidecar.post()

        assert (answer.all("content-length"), answer.all("transfer-encoding")) == (["0"], [])


async def test_head_keeps_the_length_of_the_body_it_has_not() -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 77\r\n\r\n")

    async with scripted(script) as engine, serving(engine.port) as sidecar:
        answer = await sidecar.ask(b"HEAD /v1/models HTTP/1.1\r\nHost: h\r\n\r\n")

        assert (answer.status, answer.headers, engine.last.method) == (
            200,
            [("Content-Length", "77")],
            "HEAD",
        )


async def test_events_are_delivered_as_they_come() -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.events(*(b"data: %d\n\n" % number for number in range(5)), gap_s=0.05)

    async with scripted(script) as engine, serving(engine.port) as sidecar:
        answer = await sidecar.post()

        assert (answer.body, answer.whole) == (b"".join(b"data: %d\n\n" % n for n in range(5)), True)
        assert answer.times_s[4] - answer.times_s[0] > 0.15


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_an_engine_that_refuses_connections_is_a_503(path: str) -> None:
    async with serving(closed_port()) as sidecar:
        answer = await sidecar.post(path)

        assert (answer.status, answer.all("x-sidecar-error")) == (503, ["503"])
        message = "the decode engine is not ready: it refuses connections"
        if path == MESSAGES:
            assert answer.json == {"type": "error", "error": {"type": "overloaded_error", "message": message}}
        else:
            inner = {"message": message, "type": "ServiceUnavailable", "param": None, "code": 503}
            assert answer.json == {"object": "error", **inner, "error": inner}


async def test_an_unreachable_prefiller_is_a_502() -> None:
    async with scripted() as decoder, serving(decoder.port) as sidecar:
        answer = await sidecar.post(headers=[(PREFILLER, f"127.0.0.1:{closed_port()}")])

        assert (answer.status, answer.json["type"], decoder.requests) == (502, "BadGateway", [])


async def test_an_engine_that_dies_before_its_head_is_a_502() -> None:
    async def script(got: Got, answer: Answer) -> None:
        answer.drop()

    async with scripted(script) as engine, serving(engine.port) as sidecar:
        assert (await sidecar.post()).status == 502


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b"{}x", b'{"a":NaN}', b'{"a":Infinity}', b'{"a":"\xff"}', b"1"],
)
async def test_a_body_that_is_not_one_json_object_is_a_400_before_any_leg(body: bytes) -> None:
    async with scripted() as decoder, scripted(prefilled) as prefiller, serving(decoder.port) as sidecar:
        for headers in ([], [(PREFILLER, prefiller.netloc)]):
            answer = await sidecar.post(body=body, headers=headers)
            assert (answer.status, answer.json["type"]) == (400, "BadRequestError")
        assert (decoder.requests, prefiller.requests) == ([], [])


async def test_a_body_over_the_limit_is_a_413_and_the_connection_stays_sane() -> None:
    async with scripted() as engine, serving(engine.port, "--max-request-bytes=1000") as sidecar:
        answer = await sidecar.post(body=b'{"a":"' + b"x" * 1_000_000 + b'"}')
        assert (answer.status, answer.json["code"], "--max-request-bytes" in answer.json["message"]) == (
            413,
            413,
            True,
        )
        assert engine.requests == []

        passed = await sidecar.post("/v1/files", body=b"x" * 100_000)
        assert (passed.status, len(engine.last.body)) == (200, 100_000)


async def test_a_stream_whose_engine_dies_ends_with_an_error_event_and_a_cut() -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.head(headers=[("content-type", "text/event-stream")])
        await answer.chunk(b"data: half an ev")
        await asyncio.sleep(0.02)
        answer.drop()

    async with scripted(script) as engine, serving(engine.port) as sidecar:
        answer = await sidecar.post()

        assert (answer.status, answer.whole) == (200, False)
        first, _, event = answer.body.partition(b"\n\n")
        assert first == b"data: half an ev"
        assert event.startswith(b'data: {"error":{"message":"the decode engine ended')
        assert event.endswith(b'"type":"BadGateway","param":null,"code":502}}\n\n')


@pytest.mark.parametrize(
    "head",
    [
        b"content-type: application/json\r\ncontent-length: 100\r\n",
        b"content-type: application/json\r\ntransfer-encoding: chunked\r\n",
        b"content-type: text/event-stream\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n",
    ],
)
async def test_other_bodies_whose_engine_dies_are_just_cut(head: bytes) -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.raw(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n4\r\nabcd\r\n")
        await asyncio.sleep(0.02)
        answer.drop()

    async with scripted(script) as engine, serving(engine.port) as sidecar:
        answer = await sidecar.post()

        assert (answer.status, answer.whole, b"error" in answer.body) == (200, False, False)


async def test_a_stale_connection_is_not_the_clients_trouble() -> None:
    async def script(got: Got, answer: Answer) -> None:
        await complete(got, answer)
        if len(engine.requests) == 1:
            answer.drop()

    async with scripted(script) as engine, serving(engine.port) as sidecar:
        for _ in range(4):
            assert (await sidecar.post()).status == 200


async def test_one_connection_serves_many_requests_in_order() -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.json({"n": got.json["n"]})

    async with (
        scripted(script) as engine,
        serving(engine.port) as sidecar,
        sidecar.connected() as (reader, writer),
    ):
        writer.write(b"".join(post(body=b'{"n":%d}' % number) for number in range(5)))
        answers = [(await read_answer(reader)).json["n"] for _ in range(5)]
        assert answers == [0, 1, 2, 3, 4]


async def test_a_slow_reader_does_not_hold_the_others_up() -> None:
    piece = b"x" * 65536

    async def script(got: Got, answer: Answer) -> None:
        if b"slow" not in got.body:
            await complete(got, answer)
            return
        await answer.head()
        for _ in range(500):
            await answer.chunk(piece)
        await answer.end()

    async with (
        scripted(script) as engine,
        serving(engine.port) as sidecar,
        sidecar.connected() as (reader, writer),
    ):
        writer.write(post(body=b'{"slow":1}'))
        await engine.came()
        await asyncio.sleep(0.2)
        started = monotonic()
        assert (await sidecar.post()).status == 200
        assert monotonic() - started < 1.0
        slow: Said = await read_answer(reader)
        assert (slow.whole, len(slow.body)) == (True, 500 * len(piece))


async def test_stopping_lets_streams_finish() -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.events(*(b"data: %d\n\n" % number for number in range(10)), gap_s=0.03)

    async with scripted(script) as engine, serving(engine.port) as sidecar:
        asked = asyncio.ensure_future(sidecar.post(body=BODY))
        await engine.came()
        await sidecar.stop()
        answer = await asked

        assert (answer.whole, answer.body.endswith(b"data: 9\n\n")) == (True, True)


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_a_connection_that_dies_on_its_second_request_is_not_the_clients_trouble(path: str) -> None:
    seen_on: list[int] = []

    async def script(got: Got, answer: Answer) -> None:
        fresh = engine.connections not in seen_on
        seen_on.append(engine.connections)
        if fresh:
            await complete(got, answer)
        else:
            answer.drop()

    async with scripted(script) as engine, serving(engine.port) as sidecar:
        assert [(await sidecar.post(path)).status for _ in range(4)] == [200] * 4


@pytest.mark.parametrize(
    "sent",
    [
        b'Date: x\r\nContent-Length: 11\r\nX-A: 1\r\n\r\n{ "id":"c"}',
        b'Date: x\r\nTransfer-Encoding: chunked\r\nX-A: 1\r\n\r\nb\r\n{ "id":"c"}\r\n0\r\n\r\n',
    ],
)
async def test_framing_stays_in_its_place_when_the_bytes_are_unchanged(sent: bytes) -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + sent)

    async with (
        scripted(script) as decoder,
        scripted(prefilled) as prefiller,
        serving(decoder.port) as sidecar,
    ):
        for headers in ([], [(PREFILLER, prefiller.netloc)]):
            answer = await sidecar.post(headers=headers)
            names = [name.lower() for name, _ in answer.headers if name.lower() != "transfer-encoding"]
            expected = ["content-type", "date", "content-length", "x-a"]
            if b"chunked" in sent:
                expected.remove("content-length")
                assert answer.all("transfer-encoding") == ["chunked"]
            assert (names, answer.body) == (expected, b'{ "id":"c"}')


async def test_a_changed_length_is_told_in_its_place() -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.raw(
            b"HTTP/1.1 200 OK\r\nContent-Length: 26\r\nContent-Type: application/json\r\n\r\n"
            b'{"usage":{"prompt":1234}} '
        )

    async with (
        scripted(script) as decoder,
        scripted(prefilled) as prefiller,
        serving(decoder.port) as sidecar,
    ):
        answer = await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])

        assert answer.body == b'{"usage":{"prompt":1234,"prompt_tokens_details":{"cached_tokens":2}}}'
        assert [name for name, _ in answer.headers] == ["Content-Length", "Content-Type"]


async def test_an_answer_that_is_not_http_is_said_so() -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.raw(b"SSH-2.0-x\r\n\r\n")

    async with scripted(script) as engine, serving(engine.port) as sidecar:
        answer = await sidecar.post()

        assert (answer.status, "not HTTP/1.1" in answer.json["message"]) == (502, True)


@pytest.mark.parametrize(("path", "where"), [(CHAT, ("error", "message")), (MESSAGES, ("error", "type"))])
async def test_what_the_grace_does_not_suffice_for_gets_an_honest_error(
    path: str, where: tuple[str, str]
) -> None:
    async def script(got: Got, answer: Answer) -> None:
        await asyncio.sleep(30)

    async with scripted(script) as engine, serving(engine.port) as sidecar:
        asked = asyncio.ensure_future(sidecar.post(path))
        await engine.came()
        sidecar.server.config.timeout_graceful_shutdown = 0
        await sidecar.stop()
        answer = await asked

        said = {CHAT: "the sidecar is shutting down", MESSAGES: "overloaded_error"}[path]
        assert (answer.status, answer.json[where[0]][where[1]]) == (503, said)


async def test_a_stream_that_the_grace_does_not_suffice_for_ends_with_an_error_event_and_a_cut() -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.events(*[b"data: 1\n\n"] * 1000, gap_s=0.05)

    async with scripted(script) as engine, serving(engine.port) as sidecar:
        asked = asyncio.ensure_future(sidecar.post())
        await engine.came()
        await asyncio.sleep(0.1)
        sidecar.server.config.timeout_graceful_shutdown = 0
        await sidecar.stop()
        answer = await asked

        assert not answer.whole
        assert answer.body.endswith(
            b'data: {"error":{"message":"the sidecar is shutting down","type":"ServiceUnavailable",'
            b'"param":null,"code":503}}\n\n'
        )
