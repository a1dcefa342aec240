"""A client that goes away takes every leg with it, at once, whatever the moment."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from tests.engines import Answer, Got, complete, prefilled, scripted
from tests.serving import BODY, PREFILLER, post, serving

STREAM = BODY[:-1] + b',"stream":true}'
PROMPT_S = 0.1


async def never(got: Got, answer: Answer) -> None:
    """An engine that computes for ever."""
    await asyncio.sleep(30)


async def endless(got: Got, answer: Answer) -> None:
    """An engine that streams for ever."""
    await answer.head(headers=[("content-type", "text/event-stream")])
    while True:
        await answer.chunk(b"data: x\n\n")
        await asyncio.sleep(0.005)


async def closed_in_time(got: Got, left_s: float) -> None:
    """The engine saw its connection close within the promise."""
    async with asyncio.timeout(2):
        await got.closed.wait()
    assert got.closed_s is not None
    assert got.closed_s - left_s < PROMPT_S


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_before_the_first_byte_the_decode_leg_is_closed(body: bytes) -> None:
    async with scripted(never) as decoder, serving(decoder.port) as sidecar:
        async with sidecar.connected() as (_, writer):
            writer.write(post(body=body))
            got = await decoder.came()
            left_s = monotonic()
        await closed_in_time(got, left_s)


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_during_prefill_the_prefill_leg_is_closed_and_decode_never_sent(body: bytes) -> None:
    async with scripted() as decoder, scripted(never) as prefiller, serving(decoder.port) as sidecar:
        async with sidecar.connected() as (_, writer):
            writer.write(post(body=body, headers=[(PREFILLER, prefiller.netloc)]))
            got = await prefiller.came()
            left_s = monotonic()
        await closed_in_time(got, left_s)
        await asyncio.sleep(0.05)
        assert decoder.requests == []


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_between_the_legs_nothing_is_sent_any_more(body: bytes) -> None:
    async def busy(got: Got, answer: Answer) -> None:
        await answer.json({"busy": 1}, 503)

    flags = ("--prefill-max-retries=5", "--prefill-retry-backoff=600ms")
    async with scripted() as decoder, scripted(busy) as prefiller, serving(decoder.port, *flags) as sidecar:
        async with sidecar.connected() as (_, writer):
            writer.write(post(body=body, headers=[(PREFILLER, prefiller.netloc)]))
            await prefiller.came()
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.7)
        assert (len(prefiller.requests), decoder.requests) == (1, [])


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_after_prefill_the_waiting_decode_leg_is_closed(body: bytes) -> None:
    async with scripted(never) as decoder, scripted(prefilled) as prefiller, serving(decoder.port) as sidecar:
        async with sidecar.connected() as (_, writer):
            writer.write(post(body=body, headers=[(PREFILLER, prefiller.netloc)]))
            got = await decoder.came()
            left_s = monotonic()
        await closed_in_time(got, left_s)


async def test_mid_stream_the_engine_is_closed() -> None:
    async with scripted(endless) as decoder, serving(decoder.port) as sidecar:
        async with sidecar.connected() as (reader, writer):
            writer.write(post(body=STREAM))
            await reader.readuntil(b"data: x")
            left_s = monotonic()
        await closed_in_time(decoder.last, left_s)


async def test_mid_answer_of_a_known_length_the_engine_is_closed() -> None:
    async def half(got: Got, answer: Answer) -> None:
        await answer.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await asyncio.sleep(30)

    async with scripted(half) as decoder, serving(decoder.port) as sidecar:
        async with sidecar.connected() as (reader, writer):
            writer.write(post())
            await reader.readuntil(b"half")
            left_s = monotonic()
        await closed_in_time(decoder.last, left_s)


async def test_during_an_upload_that_is_passed_through_the_engine_is_closed() -> None:
    async with scripted(complete) as decoder, serving(decoder.port) as sidecar:
        async with sidecar.connected() as (_, writer):
            writer.write(b"POST /v1/files HTTP/1.1\r\nhost: h\r\ncontent-length: 1000\r\n\r\nhalf")
            async with asyncio.timeout(2):
                while decoder.connections == 0:
                    await asyncio.sleep(0.002)
        await asyncio.sleep(PROMPT_S)
        assert decoder.open == 0


async def test_a_half_closed_client_counts_as_gone() -> None:
    async with (
        scripted(never) as decoder,
        serving(decoder.port) as sidecar,
        sidecar.connected() as (_, writer),
    ):
        writer.write(post())
        got = await decoder.came()
        left_s = monotonic()
        writer.write_eof()
        await closed_in_time(got, left_s)
