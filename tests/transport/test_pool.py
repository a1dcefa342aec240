"""Which connection a request gets, and when idle ones go."""

import asyncio

import httpx
import pytest

from sidecar.transport import Transport
from tests.transport.hostile import OK, Hostile, Peer, answering, body_of, serve_ok, turns


async def got(transport: Transport, request: httpx.Request) -> httpx.Response:
    response = await transport.handle_async_request(request)
    assert await body_of(response) == b"ok"
    return response


async def test_requests_one_after_the_other_share_a_connection(transport: Transport) -> None:
    async with Hostile(serve_ok) as engine:
        responses = [await got(transport, engine.get()) for _ in range(20)]
    assert len(engine.peers) == 1
    assert len(engine.peers[0].requests) == 20
    assert [response.extensions["reused"] for response in responses] == [False] + [True] * 19
    assert {response.extensions["connection_id"] for response in responses} == {1}


async def test_the_connection_that_became_idle_last_is_taken_first(transport: Transport) -> None:
    release = [asyncio.Event() for _ in range(3)]

    async def script(peer: Peer) -> None:
        await peer.request()
        await release[peer.number].wait()
        await peer.send(OK)
        await serve_ok(peer)

    async with Hostile(script) as engine, asyncio.TaskGroup() as group:
        tasks = []
        for _ in range(3):
            tasks.append(group.create_task(got(transport, engine.get())))
            await asyncio.sleep(0.01)
        for number in (0, 2, 1):
            release[number].set()
            await tasks[number]
        response = await got(transport, engine.get())
        assert response.extensions["connection_id"] == 2
        assert len(engine.peers) == 3


async def test_other_ports_and_schemes_do_not_share_connections(transport: Transport) -> None:
    async with Hostile(serve_ok) as one, Hostile(serve_ok) as other:
        await got(transport, one.get())
        response = await got(transport, other.get())
        assert not response.extensions["reused"]
        response = await got(transport, one.get())
        assert response.extensions["reused"]
    assert (len(one.peers), len(other.peers)) == (1, 1)


async def test_there_is_no_cap_on_connections(transport: Transport) -> None:
    count = 300
    everyone = asyncio.Barrier(count)

    async def script(peer: Peer) -> None:
        await peer.request()
        await everyone.wait()
        await peer.send(OK)
        await serve_ok(peer)

    async with Hostile(script) as engine:
        await asyncio.gather(*(got(transport, engine.get()) for _ in range(count)))
        assert len(engine.peers) == count


async def test_idle_connections_are_closed_when_their_time_is_over() -> None:
    async with Hostile(serve_ok) as engine, Transport(idle_expiry_s=0.1) as transport:
        loop = asyncio.get_running_loop()
        await asyncio.gather(got(transport, engine.get()), got(transport, engine.get()))
        first, second = engine.peers
        await asyncio.sleep(0.06)
        await got(transport, engine.get())  # the one that became idle last starts anew
        kept, dropped = (first, second) if len(first.requests) == 2 else (second, first)
        start_s = loop.time()
        await dropped.ended.wait()
        assert 0.02 < loop.time() - start_s < 1.0  # 0.04 s on a quiet machine
        assert not kept.ended.is_set()
        await kept.ended.wait()
        assert 0.08 < loop.time() - start_s < 1.0
        response = await got(transport, engine.get())
        assert not response.extensions["reused"]
        assert len(engine.peers) == 3


async def test_a_connection_idle_for_too_long_is_not_used_even_if_the_timer_is_late() -> None:
    async with Hostile(serve_ok) as engine, Transport(idle_expiry_s=0.05) as transport:
        await got(transport, engine.get())
        blocked_until_s = asyncio.get_running_loop().time() + 0.08
        loop = asyncio.get_running_loop()
        while loop.time() < blocked_until_s:
            pass  # somebody blocks the loop, so that no timer fires
        response = await got(transport, engine.get())
        assert not response.extensions["reused"]


async def test_only_so_many_idle_connections_are_kept_per_host() -> None:
    async with Hostile(serve_ok) as engine, Transport(max_idle_per_host=2) as transport:
        await asyncio.gather(*(got(transport, engine.get()) for _ in range(5)))
        await asyncio.sleep(0.02)
        assert sum(peer.ended.is_set() for peer in engine.peers) == 3


@pytest.mark.parametrize(
    "last_words", [b"", b"x", b"\r\n", b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"]
)
async def test_an_idle_connection_that_the_engine_closes_or_speaks_on_is_dropped(
    transport: Transport, last_words: bytes
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await asyncio.sleep(0.01)
        if last_words:
            await peer.send(last_words)
            await peer.gone()
        else:
            await peer.close()

    async with Hostile(script) as engine:
        await got(transport, engine.get())
        if last_words:
            await engine.peers[0].ended.wait()
        await asyncio.sleep(0.03)
        response = await got(transport, engine.get())
        assert not response.extensions["reused"]
        assert [len(peer.requests) for peer in engine.peers] == [1, 1]


async def test_closing_the_transport_closes_idle_connections_and_aborts_busy_ones() -> None:
    hold = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart"
    async with (
        Hostile(answering(OK)) as idle,
        Hostile(answering(OK, b"")) as silent,
        Hostile(answering(hold)) as slow,
    ):
        transport = Transport()
        await got(transport, idle.get())
        await got(transport, silent.get())
        waiting = asyncio.get_running_loop().create_task(transport.handle_async_request(silent.get()))
        response = await transport.handle_async_request(slow.get())
        await turns(5)
        await transport.aclose()
        with pytest.raises(httpx.ReadError, match="the transport was closed"):
            await waiting
        with pytest.raises(httpx.ReadError, match="the transport was closed"):
            await body_of(response)
        for engine in (idle, silent, slow):
            await engine.peers[0].left()
        with pytest.raises(httpx.ConnectError, match="the transport was closed"):
            await transport.handle_async_request(idle.get())
        await transport.aclose()


async def test_a_request_that_asks_to_close_is_the_last_on_its_connection(transport: Transport) -> None:
    async with Hostile(serve_ok) as engine:
        await got(transport, engine.get(headers=(("Connection", "close"),)))
        await engine.peers[0].left()
        assert not (await got(transport, engine.get())).extensions["reused"]
