"""Raw messages are httpx's own for whoever looks at them as such."""

from __future__ import annotations

import httpx

from sidecar.transport import Place, RawRequest, Transport, raw_headers
from sidecar.transport.messages import RawResponse
from tests.transport.hostile import Hostile, Peer

FIELDS = [(b"Host", b"h"), (b"X-A", b"1"), (b"x-a", b"\xe9")]


def request() -> RawRequest:
    return RawRequest("POST", Place.of(httpx.URL("http://h/p")), FIELDS, b"hi", b"/p?q")


async def test_any_httpx_transport_takes_a_raw_request() -> None:
    seen: list[httpx.Request] = []

    async def answer(got: httpx.Request) -> httpx.Response:
        seen.append(got)
        return httpx.Response(200, headers=[(b"X-B", b"2")], content=await got.aread())

    response = await httpx.MockTransport(answer).handle_async_request(request())

    assert (seen[0].method, str(seen[0].url), seen[0].headers["x-a"]) == ("POST", "http://h/p", "1, \xe9")
    assert response.content == b"hi"
    assert raw_headers(response)[0] == (b"X-B", b"2")


def test_headers_are_made_once_and_only_when_asked_for() -> None:
    raw = request()
    assert "headers" not in raw.__dict__
    assert raw.headers is raw.headers
    assert raw_headers(raw) is FIELDS
    assert not hasattr(raw, "no_such_thing")


async def test_a_raw_request_is_answered_with_a_response_that_reads_like_any_other(
    transport: Transport,
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 201 Made\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 2\r\n\r\nhi")
        await peer.gone()

    async with Hostile(script) as engine:
        url = httpx.URL(engine.origin)
        raw = RawRequest("GET", Place.of(url), [(b"Host", b"h")], b"", b"/")
        response = await transport.handle_async_request(raw)

        assert isinstance(response, RawResponse)
        assert response.raw_headers == [(b"X-A", b"1"), (b"x-a", b"2"), (b"Content-Length", b"2")]
        assert "headers" not in response.__dict__
        assert (response.status_code, response.headers.get_list("x-a")) == (201, ["1", "2"])
        assert await response.aread() == b"hi"
        assert (response.text, response.is_success) == ("hi", True)
