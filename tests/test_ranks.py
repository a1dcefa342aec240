"""Data parallel: each rank of the engine behind a port of its own (contract section 6)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.commands import Command, closed_ports, command
from tests.engines import ScriptedEngine, complete, prefilled, scripted
from tests.serving import BODY, CHAT, PREFILLER, SOURCE, post
from tests.test_answers import closed_port
from tests.test_metrics_port import ask, get, numbers
from tests.test_processes import children, until

DATA_PARALLEL = "x-data-parallel-host-port"
POD_IP = "127.0.0.1"


@asynccontextmanager
async def ranks(tmp_path: Path, *flags: str) -> AsyncIterator[tuple[Command, list[ScriptedEngine]]]:
    """A sidecar of two ranks before two engines, once both ports answer."""
    first = closed_ports(2)
    flags = ("--data-parallel-size=2", "--source-guard=off", *flags)
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(scripted(complete, port=first + rank)) for rank in (0, 1)]
        sidecar = await stack.enter_async_context(
            command(tmp_path, first, *flags, ports=2, environ={"POD_IP": POD_IP})
        )
        async with asyncio.timeout(40):
            while not await _answers(sidecar.port + 1):
                await asyncio.sleep(0.02)
        yield sidecar, engines


async def _answers(port: int) -> bool:
    try:
        return (await ask(port, get("/health"))).status == 200
    except OSError:
        return False


def counts(engines: list[ScriptedEngine]) -> list[int]:
    """How many requests each engine has had."""
    return [len(engine.requests) for engine in engines]


async def test_each_rank_has_a_port_and_a_process_of_its_own(tmp_path: Path) -> None:
    metrics = closed_port()
    async with ranks(tmp_path, f"--metrics-port={metrics}") as (sidecar, engines):
        for rank, so_far in ((0, [1, 0]), (1, [1, 1])):
            assert (await ask(sidecar.port + rank, post())).status == 200
            assert counts(engines) == so_far
        # What is not routed goes to the port's own rank too.
        assert (await ask(sidecar.port + 1, get("/v1/models"))).status == 200
        assert counts(engines) == [1, 2]
        assert engines[1].last.target == "/v1/models"

        assert len(children(sidecar.process.pid)) == 2
        assert (await numbers(metrics))['requests_total{api_type="chat_completions"}'] == 2.0
        assert len(re.findall(r"^sidecar .*, 2 ranks from these ports on, ", sidecar.log, re.MULTILINE)) == 1
        sidecar.process.terminate()
        assert await sidecar.ended() == 0


async def test_on_the_base_port_a_header_picks_the_rank_and_goes_no_further(tmp_path: Path) -> None:
    async with ranks(tmp_path) as (sidecar, engines):
        for rank, so_far in ((1, [0, 1]), (0, [1, 1])):
            header = (DATA_PARALLEL, f"{POD_IP}:{sidecar.port + rank}")
            assert (await ask(sidecar.port, post(headers=[header]))).status == 200
            assert counts(engines) == so_far
            assert engines[rank].last.body == BODY
            assert engines[rank].last.all(DATA_PARALLEL) == []
        # A rank's own port says which rank is meant.
        header = (DATA_PARALLEL, f"{POD_IP}:{sidecar.port}")
        assert (await ask(sidecar.port + 1, post(headers=[header]))).status == 200
        assert counts(engines) == [1, 2]


async def test_so_it_does_on_a_path_that_is_not_routed(tmp_path: Path) -> None:
    async with ranks(tmp_path) as (sidecar, engines):
        header = (DATA_PARALLEL, f"{POD_IP}:{sidecar.port + 1}")
        assert (await ask(sidecar.port, post("/v1/embeddings", headers=[header]))).status == 200
        assert counts(engines) == [0, 1]
        assert engines[1].last.all(DATA_PARALLEL) == []
        assert (await ask(sidecar.port, post("/v1/embeddings"))).status == 200
        assert counts(engines) == [1, 1]


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@pytest.mark.parametrize("value", ["{ip}:{beyond}", "10.9.8.7:{base}", "{ip}"])
async def test_a_header_that_names_no_rank_is_400_and_asks_no_engine(
    tmp_path: Path, value: str, path: str
) -> None:
    async with ranks(tmp_path) as (sidecar, engines):
        text = value.format(ip=POD_IP, base=sidecar.port, beyond=sidecar.port + 2)
        answer = await ask(sidecar.port, post(path, headers=[(DATA_PARALLEL, text)]))
        assert (answer.status, answer.all("x-sidecar-error")) == (400, ["400"])
        assert answer.json["message"].startswith(f"header {DATA_PARALLEL}: ")
        assert counts(engines) == [0, 0]


async def test_pulls_name_the_port_of_the_sources_rank_and_no_rank_pulls_from_itself(tmp_path: Path) -> None:
    flags = ("--kv-connector=offloading", "--p2p-connector-port=7000")
    async with ranks(tmp_path, *flags) as (sidecar, engines):

        async def pulled(rank: int, source: int, *headers: tuple[str, str]) -> tuple[str, int] | None:
            """Where a request to that rank's port, with this rank as source, made its engine pull from."""
            named = (SOURCE, f"{POD_IP}:{sidecar.port + source}")
            assert (await ask(sidecar.port + rank, post(headers=[named, *headers]))).status == 200
            got = max((engine.last for engine in engines if engine.requests), key=lambda last: last.came_s)
            if "kv_transfer_params" not in got.json:
                assert got.body == BODY
                return None
            directive = got.json["kv_transfer_params"]["remote_kv_source"]
            return directive["remote_host"], directive["remote_port"]

        assert await pulled(0, source=1) == (POD_IP, 7001)
        assert await pulled(1, source=0) == (POD_IP, 7000)
        assert await pulled(0, source=0) is None
        assert await pulled(1, source=1) is None
        # Rank 1 by its header: what is itself, and what is not, is rank 1's.
        rank_1 = (DATA_PARALLEL, f"{POD_IP}:{sidecar.port + 1}")
        assert await pulled(0, 1, rank_1) is None
        assert await pulled(0, 0, rank_1) == (POD_IP, 7000)
        assert await pulled(0, 2, rank_1) == (POD_IP, 7000)


async def test_a_handoff_ends_at_the_rank_that_was_picked(tmp_path: Path) -> None:
    async with scripted(prefilled) as prefiller, ranks(tmp_path) as (sidecar, engines):
        for port, headers in (
            (sidecar.port + 1, []),
            (sidecar.port, [(DATA_PARALLEL, f"{POD_IP}:{sidecar.port + 1}")]),
        ):
            answer = await ask(port, post(CHAT, headers=[(PREFILLER, prefiller.netloc), *headers]))
            assert answer.status == 200
        assert (counts(engines), len(prefiller.requests)) == ([0, 2], 2)
        assert [got.all(DATA_PARALLEL) for got in prefiller.requests] == [[], []]


async def test_a_rank_that_ends_by_itself_comes_back_on_its_port(tmp_path: Path) -> None:
    async with ranks(tmp_path, "--workers=2") as (sidecar, engines):
        await until(lambda: len(children(sidecar.process.pid)) == 4, "no workers")
        before = set(children(sidecar.process.pid))
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: len(set(children(sidecar.process.pid)) - before) == 4, "not started again")
        async with asyncio.timeout(40):
            while not (await _answers(sidecar.port) and await _answers(sidecar.port + 1)):
                await asyncio.sleep(0.02)
        for rank in (0, 1):
            assert (await ask(sidecar.port + rank, post())).status == 200
        assert counts(engines) == [1, 1]
        assert ", 2 ranks from these ports on, 2 workers each; try: " in sidecar.log
