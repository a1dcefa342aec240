"""Very many clients, very slow ones and those beside them: nobody waits for another, nothing piles up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic

from tests.commands import Command, command
from tests.engines import COMPLETION, Answer, Got, ScriptedEngine, scripted
from tests.extremes.sizes import SIZES, allow_files, rss_bytes
from tests.serving import BODY, CHAT, Said, Served, post, read_answer, read_head

STREAM = b'{"model":"m","messages":[{"role":"user","content":"%d"}],"stream":true}'
GAP_S = 0.01
# Who is blocked by a slow client is so for as long as it is slow (STALLED_S and more). A machine that does
# much else stops everybody for up to half a second: who asks the engine directly, too.
LONGER_S = 0.5
STALLED_S = 1.5
PIECE = b"x" * 65_536
# What may wait between an engine and a client that does not read: the sidecar's own 256 KiB and one read, and
# the kernel's buffers of two connections (tcp(7): tcp_rmem up to 32 MB and tcp_wmem up to 4 MB are common,
# though a reader that does not read is not given the most).
IN_BETWEEN_BYTES = 24_000_000
# Of the sidecar's memory; a whole answer held would be far more.
GROWTH_BYTES = 8_000_000


async def numbered(got: Got, answer: Answer) -> None:
    """Eight events with the request's own number in them."""
    number = got.json["messages"][0]["content"]
    await answer.events(*(b'data: {"n":"%b/%d"}\n\n' % (number.encode(), i) for i in range(8)), gap_s=GAP_S)


@asynccontextmanager
async def running(engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[tuple[Command, Served]]:
    """A sidecar in a process of its own, with nothing of the test's in its memory; and how to talk to it."""
    async with command(tmp_path, engine.port, "--host=127.0.0.1", "--log-level=warning") as process:
        yield process, Served(process.port, None)  # type: ignore[arg-type]  # its server is not in this loop


async def test_very_many_streams_at_once_are_all_whole_and_nobody_gets_anothers(tmp_path: Path) -> None:
    allow_files(4 * SIZES.streams + 200)
    together = asyncio.Event()

    async def held(got: Got, answer: Answer) -> None:
        if len(engine.requests) == SIZES.streams:
            together.set()
        await together.wait()  # so that all of them are there at the same time
        await numbered(got, answer)

    async def ask(sidecar: Served, number: int) -> Said:
        async with sidecar.connected() as (reader, writer):
            writer.write(post(body=STREAM % number))
            return await read_answer(reader)

    async with asyncio.timeout(60), scripted(held) as engine, running(engine, tmp_path) as (_, sidecar):
        answers = await asyncio.gather(*(ask(sidecar, number) for number in range(SIZES.streams)))

        assert engine.open <= SIZES.streams
        for number, said in enumerate(answers):
            assert (said.status, said.whole) == (200, True)
            assert said.body == b"".join(b'data: {"n":"%d/%d"}\n\n' % (number, i) for i in range(8))


async def test_slow_readers_hold_up_nobody_and_pile_up_nothing(tmp_path: Path) -> None:
    sent = [0]

    async def flood(got: Got, answer: Answer) -> None:
        if got.target != "/v1/completions":
            await answer.events(*[b"data: {}\n\n"] * int(STALLED_S / GAP_S), gap_s=GAP_S)
            return
        await answer.head(headers=[("content-type", "text/event-stream")])
        for _ in range(SIZES.flood_bytes // len(PIECE)):
            await answer.chunk(PIECE)
            sent[0] += len(PIECE)
        await answer.end()

    async with (
        asyncio.timeout(90),
        scripted(flood) as engine,
        running(engine, tmp_path) as (process, sidecar),
        AsyncExitStack() as stack,
    ):
        await sidecar.post(body=STREAM % 0)
        before_bytes = rss_bytes(process.process.pid)
        slow = [await stack.enter_async_context(_not_reading(sidecar)) for _ in range(SIZES.slow_readers)]
        direct = Served(engine.port, None)  # type: ignore[arg-type]
        both = await asyncio.gather(*(to.post(body=STREAM % 1) for to in (sidecar, direct) for _ in range(8)))

        assert all(said.whole for said in both)
        fast, beside = both[:8], both[8:]
        assert longest_gap_s(fast) < longest_gap_s(beside) + LONGER_S
        each_bytes = sent[0] / SIZES.slow_readers
        assert each_bytes < min(IN_BETWEEN_BYTES, SIZES.flood_bytes / 2)
        assert rss_bytes(process.process.pid) - before_bytes < GROWTH_BYTES + 1_000_000 * SIZES.slow_readers
        # And who was slow gets all of it.
        reader = slow[0]
        said = await _drained(reader)
        assert (said.whole, len(said.body)) == (True, SIZES.flood_bytes // len(PIECE) * len(PIECE))


def longest_gap_s(answers: Sequence[Said]) -> float:
    """Between two events of one of them."""
    return max(after - before for said in answers for before, after in pairwise(said.times_s))


@asynccontextmanager
async def _not_reading(sidecar: Served) -> AsyncIterator[asyncio.StreamReader]:
    """A client that asks for a flood and then reads no more than a stream reader's own buffer holds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.port, limit=1024)
    try:
        writer.write(post("/v1/completions", b'{"model":"m","prompt":"x","stream":true}'))
        yield reader
    finally:
        writer.transport.abort()


async def _drained(reader: asyncio.StreamReader) -> Said:
    said = await read_head(reader)
    pieces: list[bytes] = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    said.body, said.whole = b"".join(pieces), await reader.readexactly(2) == b"\r\n"
    return said


async def test_uploads_of_one_byte_per_50_ms_are_not_cut_and_disturb_nobody(tmp_path: Path) -> None:
    paths = (CHAT, "/v1/files")

    async def paced(got: Got, answer: Answer) -> None:
        await (numbered(got, answer) if b'"stream":true' in got.body else answer.json(COMPLETION))

    body = b'{"model":"m","messages":[{"role":"user","content":"' + b"a" * SIZES.trickled_bytes + b'"}]}'
    async with asyncio.timeout(120), scripted(paced) as engine, running(engine, tmp_path) as (_, sidecar):
        async with asyncio.TaskGroup() as tasks:
            slow = [
                tasks.create_task(_trickled(sidecar, post(path, body), SIZES.trickled_bytes))
                for path in paths
            ]
            others: list[Said] = []
            taken_s: list[float] = []
            while not all(upload.done() for upload in slow):
                began_s = monotonic()
                others.append(await sidecar.post(body=STREAM % len(others)))
                taken_s.append(monotonic() - began_s)

        assert all(said.whole and said.status == 200 for said in others)
        # Whoever had to wait for the upload would be one or two, and take as long as it.
        assert median(taken_s) < 8 * GAP_S + LONGER_S
        assert len(others) > 2
        assert [(said.status, said.json) for said in (upload.result() for upload in slow)] == [
            (200, COMPLETION)
        ] * 2
        assert sorted(got.target for got in engine.requests if got.body == body) == sorted(paths)


async def _trickled(sidecar: Served, request: bytes, count: int) -> Said:
    """Send all but the last `count` bytes at once, and those one by one."""
    async with sidecar.connected() as (reader, writer):
        writer.write(request[:-count])
        for at in range(len(request) - count, len(request)):
            writer.write(request[at : at + 1])
            await asyncio.sleep(0.05)
        return await read_answer(reader)


async def test_heads_and_bodies_of_one_byte_per_turn_are_read(tmp_path: Path) -> None:
    async with scripted() as engine, running(engine, tmp_path) as (_, sidecar):
        said = await asyncio.gather(*(_one_by_one(sidecar, post(body=BODY)) for _ in range(20)))

        assert [answer.status for answer in said] == [200] * 20
        assert [json.loads(got.body) for got in engine.requests] == [json.loads(BODY)] * 20


async def _one_by_one(sidecar: Served, request: bytes) -> Said:
    async with sidecar.connected() as (reader, writer):
        for at in range(len(request)):
            writer.write(request[at : at + 1])
            await asyncio.sleep(0)
        return await read_answer(reader)
