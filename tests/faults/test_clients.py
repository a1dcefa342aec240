"""Clients that are slow, half-closed or gone, on every way: no leg outlives them, and none loses a byte."""

from __future__ import annotations

import asyncio

import pytest

from tests.engines import Answer, Got
from tests.faults.broken import FAULTS
from tests.faults.ways import DECODE, PREFILL, WAYS, answering, has_right_answer, never, pod
from tests.serving import post, read_answer

every_way = pytest.mark.parametrize("name", WAYS)


@every_way
@pytest.mark.parametrize("half_closed", [False, True], ids=["gone", "half-closed"])
async def test_every_leg_ends_with_its_client(name: str, half_closed: bool) -> None:
    async with pod(name) as served:
        for role in reversed((DECODE, *served.way.roles)):  # a bootstrap server is asked once, so it is first
            served.script(role, never)
            if role == PREFILL and served.way.beside:
                served.engines[DECODE].script = never
            before = len(served.engines[role].requests)
            async with served.sidecar.connected() as (reader, writer):
                writer.write(post(body=served.way.body(stream=True), headers=served.headers))
                got = await served.engines[role].came(before + 1)
                if half_closed:
                    writer.write_eof()
                    async with asyncio.timeout(5):
                        assert await reader.read() == b""  # and no answer that nobody waits for
            async with asyncio.timeout(5):
                await got.closed.wait()
            await served.idle()


@every_way
async def test_a_slow_client_gets_every_byte(name: str) -> None:
    async with pod(name) as served:
        served.script(DECODE, FAULTS["a huge answer"].script(DECODE))
        async with asyncio.timeout(30), served.sidecar.connected() as (reader, writer):
            transport = writer.transport
            assert isinstance(transport, asyncio.ReadTransport)
            transport.pause_reading()
            writer.write(post(body=served.way.body(stream=True), headers=served.headers))
            await served.engines[DECODE].came()
            await asyncio.sleep(0.1)
            transport.resume_reading()
            said = await read_answer(reader)
        assert (said.status, said.whole, has_right_answer(said.body)) == (200, True, True)
        await served.idle()


@pytest.mark.parametrize(
    "name", [name for name, way in WAYS.items() if PREFILL in way.roles and not way.beside]
)
async def test_a_prefiller_that_dies_between_the_legs_leaves_the_answer_to_the_decoder(name: str) -> None:
    async def last_words(got: Got, answer: Answer) -> None:
        await answering(PREFILL)(got, answer)
        answer.drop()

    async def without_blocks(got: Got, answer: Answer) -> None:
        if got.json.get("cache_hit_threshold"):
            await answering(DECODE)(got, answer)
        else:
            await answer.json({"error": "the blocks did not come"}, 500)

    async with pod(name) as served:
        served.script(PREFILL, last_words)
        served.engines[DECODE].script = without_blocks
        said = await served.sidecar.post(body=served.way.body(stream=False), headers=served.headers)
        assert (said.status, said.json) == (500, {"error": "the blocks did not come"})
        assert len(served.engines[PREFILL].requests) == 1
        await served.idle()
