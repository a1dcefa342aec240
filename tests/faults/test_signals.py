"""SIGTERM and SIGKILL in the middle of traffic: what was accepted is answered, or cut so that it shows."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.commands import Command, command
from tests.engines import Answer, Got, scripted
from tests.serving import Said, post, read_answer

EVENTS = (b'data: {"n":1}\n\n', b'data: {"n":2}\n\n', b"data: [DONE]\n\n")
CLIENTS = 8


async def streaming(got: Got, answer: Answer) -> None:
    await answer.events(*EVENTS, gap_s=0.02)


async def stream_until(sidecar: Command, over: asyncio.Event, seen: list[Said]) -> None:
    """Ask again and again, each time on a fresh connection, until the sidecar takes no more."""
    while not over.is_set():
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.port)
        except OSError:
            return
        try:
            writer.write(post(headers=[("connection", "close")]))
            seen.append(await all_of(reader))
        except OSError:  # reset before a byte
            seen.append(Said(0, "", []))
        finally:
            writer.transport.abort()


async def all_of(reader: asyncio.StreamReader) -> Said:
    """The answer as far as it comes; status 0 for none at all. Raises OSError for a reset without a byte."""
    received = b""
    try:
        while piece := await reader.read(1 << 16):
            received += piece
    except ConnectionError:
        if not received:
            raise
    if b"\r\n\r\n" not in received:
        return Said(0, "", [], received)
    whole = asyncio.StreamReader()
    whole.feed_data(received)
    whole.feed_eof()
    return await read_answer(whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_traffic_ends_whole_or_visibly_cut(tmp_path: Path, number: signal.Signals) -> None:
    over = asyncio.Event()
    seen: list[Said] = []
    async with scripted(streaming) as engine, command(tmp_path, engine.port) as sidecar:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(stream_until(sidecar, over, seen))
            await engine.came(5 * CLIENTS)
            sidecar.process.send_signal(number)
            code = await sidecar.ended()
            over.set()
        async with asyncio.timeout(5):
            while engine.open:
                await asyncio.sleep(0.01)  # every leg is closed, whoever ended the process

    answers = [said for said in seen if said.status]
    cut = [said for said in answers if not said.whole]
    assert all((said.status, said.body) == (200, b"".join(EVENTS)) for said in answers if said.whole)
    assert len(answers) > 3 * CLIENTS
    assert all(said.body == b"" for said in seen if not said.status)  # none of them got half a head
    if number is signal.SIGTERM:
        assert (code, cut) == (0, [])
    else:
        assert (code, len(cut) <= CLIENTS) == (-signal.SIGKILL, True)
