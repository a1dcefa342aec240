"""Applications that speak ASGI and know no Client."""

import asyncio
import logging
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from tests.server.loopback import get, post, serving, settled


def fastapi_app() -> FastAPI:
    """A small application of the usual kind."""
    app = FastAPI()

    @app.get("/health/{name}")
    async def health(name: str, request: Request) -> dict[str, Any]:
        return {
            "name": name,
            "query": request.url.query,
            "twice": request.headers.getlist("x-twice"),
            "client": request.client.host if request.client else None,
        }

    @app.post("/length")
    async def length(request: Request) -> int:
        return len(await request.body())

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def pieces() -> Any:
            for piece in (b"one", b"two"):
                yield piece
                await asyncio.sleep(0.001)

        return StreamingResponse(pieces())

    return app


async def test_a_fastapi_application_works() -> None:
    async with serving(fastapi_app()) as stage, stage.caller() as caller:
        answer = await caller.ask(get("/health/a%20b?c=d", "X-Twice: 1", "X-TWICE: 2"))
        assert answer.body == b'{"name":"a b","query":"c=d","twice":["1","2"],"client":"127.0.0.1"}'
        assert answer.headers == [
            (b"content-length", b"%d" % len(answer.body)),
            (b"content-type", b"application/json"),
        ]
        assert (await caller.ask(post(bytes(3_000_000), target="/length"))).body == b"3000000"
        assert (await caller.ask(post(b"abc", "Expect: 100-continue", target="/length")[:-3])).status == 100
        await caller.send(b"abc")
        assert (await caller.answer()).body == b"3"
        answer = await caller.ask(get("/stream"))
        assert (answer.get(b"transfer-encoding"), answer.body) == (b"chunked", b"onetwo")
        answer = await caller.ask(get("/stream").replace(b"GET", b"HEAD"), bodiless=True)
        assert answer.status == 405
        assert (await caller.ask(get("/health/x"))).status == 200


async def test_a_fastapi_stream_ends_when_its_client_leaves() -> None:
    app = FastAPI()
    ended = asyncio.Event()

    @app.get("/")
    async def stream() -> StreamingResponse:
        async def pieces() -> Any:
            try:
                while True:
                    yield b"more"
                    await asyncio.sleep(0.001)
            finally:
                ended.set()

        return StreamingResponse(pieces())

    async with serving(app) as stage, stage.caller() as caller:
        await caller.send(get())
        await caller.until(b"more")
        caller.sock.close()
        await asyncio.wait_for(ended.wait(), 0.1)


async def test_the_scope_has_what_asgi_asks_for() -> None:
    scopes: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        scopes.append({**scope, "headers": list(scope["headers"])})
        assert len(scope["headers"]) == 2
        scope["state"]["mine"] = 1
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    async with serving(application) as stage, stage.caller() as caller:
        for _ in range(2):
            await caller.ask(get("/a%2Fb/%C3%A9?x=%20", "X-Y: Z"))
        scope = scopes[1]
        assert scope["server"] == ("127.0.0.1", stage.port)
        assert scope["client"] == caller.sock.getsockname()
    del scope["extensions"], scope["server"], scope["client"]
    assert scope == {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/a/b/é",
        "raw_path": b"/a%2Fb/%C3%A9",
        "query_string": b"x=%20",
        "root_path": "",
        "headers": [(b"host", b"a"), (b"x-y", b"Z")],
        "state": {"mine": 1},
    }


async def test_receive_gives_the_body_in_pieces_and_then_the_end_of_the_exchange() -> None:
    got: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        got.append(await receive())
        while got[-1]["more_body"]:
            got.append(await receive())
        waiting = asyncio.get_running_loop().create_task(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})
        got.append(await waiting)
        got.append(await receive())

    async with serving(application) as stage, stage.caller() as caller:
        await caller.send(post(b"onetwo")[:-3])
        await settled(lambda: got)
        await caller.send(b"two")
        assert (await caller.answer()).body == b"ab"
        await settled(lambda: not stage.server.server_state.tasks)
    assert got == [
        {"type": "http.request", "body": b"one", "more_body": True},
        {"type": "http.request", "body": b"two", "more_body": False},
        {"type": "http.disconnect"},
        {"type": "http.disconnect"},
    ]


async def test_a_request_without_a_body_gives_one_empty_piece() -> None:
    got: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        got.append(await receive())
        headers = [(b"Transfer-Encoding", b"chunked"), (b"x", b"y")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"a", "more_body": False})

    async with serving(application) as stage, stage.caller() as caller:
        answer = await caller.ask(get())
    assert got == [{"type": "http.request", "body": b"", "more_body": False}]
    assert (answer.headers, answer.body) == ([(b"x", b"y"), (b"content-length", b"1")], b"a")


START = {"type": "http.response.start", "status": 200}
BODY = {"type": "http.response.body", "body": b"a"}


@pytest.mark.parametrize(
    ("messages", "status"),
    [([BODY], 500), ([START, START], 500), ([START, {"type": "nonsense"}], 500), ([START], 500)],
)
async def test_messages_out_of_order_are_an_error(
    messages: list[dict[str, Any]], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    async with serving(application) as stage, stage.caller() as caller:
        assert (await caller.ask(get())).status == status
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_a_message_after_the_last_one_is_an_error_that_the_client_does_not_see(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        for message in (START, BODY, BODY):
            await send(message)

    async with serving(application) as stage, stage.caller() as caller:
        for _ in range(2):
            assert (await caller.ask(get())).body == b"a"
    assert len(caplog.records) == 2


async def test_a_fastapi_error_is_logged_and_answered_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = FastAPI()

    @app.get("/")
    async def fail() -> None:
        raise ValueError("secret")

    async with serving(app) as stage, stage.caller() as caller:
        answer = await caller.ask(get())
    assert (answer.status, answer.body) == (500, b"Internal Server Error")
    assert len(caplog.records) == 1
