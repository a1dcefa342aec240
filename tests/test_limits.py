"""Limits on what clients and engines may take, each with an answer that says which one it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sidecar.concurrency import Concurrency
from sidecar.errors import AtCapacity
from tests.engines import Answer, Got, ScriptedEngine, complete, scripted
from tests.serving import CHAT, post, read_answer, serving


@pytest.fixture
async def gate() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
async def engine(gate: asyncio.Event) -> AsyncIterator[ScriptedEngine]:
    """Answers once the gate is open."""

    async def script(got: Got, answer: Answer) -> None:
        await gate.wait()
        await complete(got, answer)

    async with scripted(script) as running:
        yield running


def test_the_place_of_an_exchange_is_free_again_however_it_ended() -> None:
    concurrency = Concurrency(1)
    with pytest.raises(ZeroDivisionError), concurrency:
        raise ZeroDivisionError
    with concurrency, pytest.raises(AtCapacity), concurrency:
        pass
    assert concurrency.running == 0


def test_without_a_limit_nobody_is_refused() -> None:
    concurrency = Concurrency(0)
    with concurrency, concurrency, concurrency:
        assert concurrency.running == 3


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/models"])
async def test_one_request_too_many_is_told_to_come_back(
    path: str, engine: ScriptedEngine, gate: asyncio.Event
) -> None:
    async with serving(engine.port, "--max-concurrent-requests=2") as sidecar:
        running = [asyncio.create_task(sidecar.post()) for _ in range(2)]
        await engine.came(2)
        refused = await sidecar.post(path)
        assert (refused.status, refused.all("retry-after")) == (503, ["1"])
        assert (refused.all("x-sidecar-error"), refused.whole) == (["503"], True)
        error = refused.json["error"]
        assert error["message"] == "2 requests run, and no more may at a time (--max-concurrent-requests)"
        assert error["type"] == ("overloaded_error" if path == "/v1/messages" else "ServiceUnavailable")
        assert (await sidecar.ask(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")).status == 200
        gate.set()
        assert [(await one).status for one in running] == [200, 200]
        assert (await sidecar.post()).status == 200
    assert len(engine.requests) == 3


async def test_a_client_that_leaves_makes_room(engine: ScriptedEngine, gate: asyncio.Event) -> None:
    async with serving(engine.port, "--max-concurrent-requests=1") as sidecar:
        async with sidecar.connected() as (_, writer):
            writer.write(post())
            got = await engine.came()
        await asyncio.wait_for(got.closed.wait(), 5)
        gate.set()
        assert (await sidecar.post()).status == 200


async def test_a_head_over_the_limit_is_a_431_that_names_the_flag(engine: ScriptedEngine) -> None:
    async with serving(engine.port, "--max-header-bytes=500") as sidecar:
        refused = await sidecar.post(headers=[("x-long", "x" * 500)])
        assert (refused.status, refused.json["type"]) == (431, "RequestHeaderFieldsTooLarge")
        assert refused.json["message"].endswith("over 500 bytes (--max-header-bytes)")
    assert engine.requests == []


async def test_the_time_for_a_head_is_over_before_a_long_prefill_is_cut(
    engine: ScriptedEngine, gate: asyncio.Event
) -> None:
    flags = ("--header-timeout=100ms", "--client-idle-timeout=200ms")
    async with serving(engine.port, *flags) as sidecar:
        async with sidecar.connected() as (reader, writer):
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
            refused = await read_answer(reader)
            assert (refused.status, refused.json["type"]) == (408, "RequestTimeout")
            assert refused.json["message"] == "no whole request head within 0.1 s"
            assert await reader.read() == b""
        async with sidecar.connected() as (reader, writer):
            writer.write(post())
            await engine.came()
            await asyncio.sleep(0.6)  # longer than both together
            gate.set()
            assert (await read_answer(reader)).status == 200
            begun_s = asyncio.get_running_loop().time()
            assert await reader.read() == b""  # idle now: closed without a word
            assert 0.1 < asyncio.get_running_loop().time() - begun_s < 3


@pytest.mark.parametrize(("size", "status"), [(1500, 200), (3000, 502)])
async def test_an_answers_head_over_the_limit_is_a_502_that_names_the_flag(size: int, status: int) -> None:
    async def script(got: Got, answer: Answer) -> None:
        await answer.json({"id": "c"}, headers=[("x-long", "x" * size)])

    async with (
        scripted(script) as engine,
        serving(engine.port, "--max-response-header-bytes=2000") as sidecar,
    ):
        said = await sidecar.post()
    assert said.status == status
    if status == 502:
        assert said.json["message"] == (
            "the decode engine's response head over 2000 bytes (--max-response-header-bytes)"
        )


@pytest.mark.parametrize("path", [CHAT, "/v1/audio/transcriptions"], ids=["read", "passed through"])
@pytest.mark.parametrize("length", [300, 300_000])
async def test_a_body_may_take_its_time_but_not_stand_still(path: str, length: int) -> None:
    request = post(path, b'{"prompt":"' + b"x" * (length - 13) + b'"}')
    head_bytes = len(request) - length
    flags = ("--body-timeout=200ms", "--max-concurrent-requests=1")
    async with scripted() as engine, serving(engine.port, *flags) as sidecar:
        async with sidecar.connected() as (reader, writer):
            step = length // 8 + 1
            writer.write(request[:head_bytes])
            for at in range(head_bytes, len(request), step):  # over 0.4 s in all
                writer.write(request[at : at + step])
                await asyncio.sleep(0.06)
            assert (await read_answer(reader)).status == 200
        async with sidecar.connected() as (reader, writer):
            writer.write(request[:-5])
            refused = await read_answer(reader)
            assert (refused.status, refused.json["type"]) == (408, "RequestTimeout")
            assert refused.json["message"] == "nothing more of the request body came within 0.2 s"
            assert refused.all("connection") == ["close"]
            assert await reader.read() == b""
        assert (await sidecar.post()).status == 200  # its place is free
