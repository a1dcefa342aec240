"""What a process has now, on the board."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from sidecar import gauges
from sidecar.app import Shared, server_of
from sidecar.observers.board import Board
from sidecar.observers.families import CONNECTIONS, GUARD_SOURCES, LOOP_LAG, WORKERS
from sidecar.parts import build
from sidecar.server.run import listen
from sidecar.settings import load
from tests.commands import command
from tests.engines import complete, scripted
from tests.serving import BODY, SOURCE, Said, Served, post
from tests.test_answers import closed_port
from tests.test_metrics_port import PREFIX, ask, get
from tests.test_processes import MANY, TWO, connected, stream, workers

FLAGS = ("--secure-serving=false", "--kv-connector=offloading")


async def shown(board: Board, cell: int, wanted: float) -> None:
    """Wait until the board says so."""
    async with asyncio.timeout(5):
        while board.totals()[cell] != wanted:
            await asyncio.sleep(0.02)


async def test_connections_sources_and_the_process_are_shown_and_gone_when_it_ends() -> None:
    board, row = Board(2), 1
    async with scripted(complete) as engine:
        listener = listen("127.0.0.1", 0)
        port = listener.getsockname()[1]
        p2p = closed_port()
        settings = load(
            [f"--port={port}", f"--model-server-port={engine.port}", f"--p2p-connector-port={p2p}", *FLAGS],
            {"POD_IP": "127.0.0.1"},
        )
        server = server_of(settings, [], Shared(None), row=board.row(row))
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup(sockets=[listener])
        served = Served(port, server)
        answer: Said = await served.post(body=BODY, headers=[(SOURCE, "127.0.0.2:8000")])
        assert answer.status == 200
        await shown(board, WORKERS.first, 1.0)
        await shown(board, GUARD_SOURCES.cell("bad"), 1.0)
        await shown(board, CONNECTIONS.cell("idle"), 1.0)
        assert board.totals()[GUARD_SOURCES.cell("good")] == 0.0
        await served.stop()
        assert board.totals()[WORKERS.first] == 0.0


async def test_what_a_killed_process_had_is_gone_with_it(tmp_path: Path) -> None:
    metrics = closed_port()
    shows = [f"{PREFIX}requests_in_flight 0.0", f"{PREFIX}workers 2.0"]
    flags = (TWO, f"--metrics-port={metrics}")
    async with scripted(stream) as engine, command(tmp_path, engine.port, *flags) as sidecar:
        pids = await workers(sidecar)
        pairs = await connected(sidecar.port)
        for _, writer in pairs:
            writer.write(post())
        await engine.came(MANY)
        os.kill(pids[0], signal.SIGKILL)
        for _, writer in pairs:
            writer.transport.abort()
        await workers(sidecar)
        async with asyncio.timeout(10):
            while not set(shows) <= set((await ask(metrics, get("/metrics"))).body.decode().splitlines()):
                await asyncio.sleep(0.05)


async def test_a_loop_that_is_held_up_is_seen_as_lag() -> None:
    row = Board(1).row(0)
    services = build(load([], {"POD_IP": "127.0.0.1"}), [], rank=0)
    task = asyncio.get_running_loop().create_task(gauges.keep(row, services))
    await asyncio.sleep(0)
    time.sleep(gauges.PERIOD_S + 0.2)  # noqa: ASYNC251
    async with asyncio.timeout(5):
        while not sum(row[LOOP_LAG.first : LOOP_LAG.sum_cell]):
            await asyncio.sleep(0.01)
    task.cancel()
    assert row[LOOP_LAG.sum_cell] >= 0.19
