"""The engines' own side protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sidecar.lab.wire import Listener, Session, WireError, frame, read_frame


@asynccontextmanager
async def echo() -> AsyncIterator[tuple[Listener, int]]:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, tail = await read_frame(reader)
            writer.write(frame(head | {"echo": True}, tail[::-1]))

    listener = Listener(converse)
    port = await listener.open("127.0.0.1", 0)
    try:
        yield listener, port
    finally:
        await listener.close()


async def test_a_session_asks_several_times() -> None:
    async with echo() as (_, port):
        session = await Session.connect("127.0.0.1", port)
        assert await session.ask({"a": 1}, b"xyz") == ({"a": 1, "echo": True}, b"zyx")
        assert await session.ask({}) == ({"echo": True}, b"")
        assert session.usable
        session.drop()


async def test_a_dropped_listener_ends_its_sessions_and_refuses_new_ones() -> None:
    async with echo() as (listener, port):
        session = await Session.connect("127.0.0.1", port)
        await session.ask({})
        listener.drop()
        with pytest.raises(WireError):
            await session.ask({})
        with pytest.raises(ConnectionRefusedError):
            await Session.connect("127.0.0.1", port)
        assert not session.usable


async def test_a_session_whose_peer_is_gone_is_not_usable() -> None:
    async with echo() as (listener, port):
        session = await Session.connect("127.0.0.1", port)
        await session.ask({})
        listener.drop()
        await asyncio.sleep(0.02)
        assert not session.usable
        session.drop()


async def test_a_cancelled_question_closes_the_session() -> None:
    closed = asyncio.Event()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        await reader.read()
        closed.set()

    listener = Listener(converse)
    session = await Session.connect("127.0.0.1", await listener.open("127.0.0.1", 0))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await session.ask({})
    async with asyncio.timeout(1):
        await closed.wait()
    await listener.close()


@pytest.mark.parametrize(
    "raw", [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", frame({"a": 1}, b"xyz")[:-1], b"\0\0\0\2\0\0\0\0[]"]
)
async def test_what_is_no_frame_is_refused(raw: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(raw)
    reader.feed_eof()
    with pytest.raises(WireError):
        await read_frame(reader)


async def test_connecting_and_closing_at_once_is_harmless() -> None:
    async with echo() as (_, port):
        for _ in range(50):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            await writer.wait_closed()
        session = await Session.connect("127.0.0.1", port)
        assert await session.ask({"still": "here"}) == ({"still": "here", "echo": True}, b"")
        session.drop()
