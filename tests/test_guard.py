"""The source guard on real sockets: dead peers cost a request at most the budget and no pull."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic

import pytest

from sidecar.endpoint import Endpoint
from sidecar.guard import GuardTimes, SourceGuard
from sidecar.transport import Resolver
from tests.engines import scripted
from tests.serving import BODY, SOURCE, serving

TIMES = GuardTimes(budget_s=0.05, good_s=0.4, bad_s=0.1, table_entries=64)


class Listener:
    """A P2P port that counts the connections it accepts."""

    def __init__(self) -> None:
        self.accepted = 0
        self.port = 0

    def took(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Count one connection."""
        self.accepted += 1
        writer.close()


@asynccontextmanager
async def listening(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Listener]:
    """A P2P port that is open for as long as the block lasts."""
    listener = Listener()
    server = await asyncio.start_server(listener.took, host, port)
    listener.port = server.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        server.close()
        await server.wait_closed()


@contextmanager
def silent() -> Iterator[Endpoint]:
    """An endpoint that never answers: a listening socket whose accept queue is full drops every SYN."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        host, port = full.getsockname()
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex((host, port))
        yield Endpoint(host, port)


def refusing() -> Endpoint:
    """An endpoint that refuses connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Endpoint("127.0.0.1", probe.getsockname()[1])


async def test_a_source_that_accepts_is_admitted_and_remembered() -> None:
    async with listening() as listener, SourceGuard(TIMES) as guard:
        source = Endpoint("127.0.0.1", listener.port)
        assert not guard.trusts(source)
        assert [await guard.admits(source) for _ in range(50)] == [True] * 50
        assert guard.trusts(source)
        await asyncio.sleep(0.02)
        assert listener.accepted == 1


async def test_a_source_that_refuses_is_not_admitted_until_its_time_is_over() -> None:
    async with SourceGuard(TIMES) as guard:
        source = refusing()
        assert await guard.admits(source) is False
        assert not guard.trusts(source)
        async with listening(port=source.port):
            assert await guard.admits(source) is False
            await asyncio.sleep(TIMES.bad_s * 1.3)
            assert await guard.admits(source) is True


async def test_a_silent_source_costs_no_request_more_than_the_budget_and_one_probe_serves_all() -> None:
    with silent() as source:
        async with SourceGuard(TIMES) as guard:
            started_s = monotonic()
            answers = await asyncio.gather(*(guard.admits(source) for _ in range(100)))
            assert answers == [False] * 100
            assert monotonic() - started_s < TIMES.budget_s + 0.2
            assert guard.probes == 1


async def test_a_source_in_use_is_renewed_in_the_background() -> None:
    async with listening() as listener, SourceGuard(TIMES) as guard:
        source = Endpoint("127.0.0.1", listener.port)
        for _ in range(20):
            assert await guard.admits(source) is True
            await asyncio.sleep(TIMES.good_s / 10)
        assert 2 <= listener.accepted <= 10


async def test_a_source_that_dies_is_found_out_by_its_renewal() -> None:
    async with SourceGuard(TIMES) as guard:
        async with listening() as listener:
            source = Endpoint("127.0.0.1", listener.port)
            assert await guard.admits(source) is True
        await asyncio.sleep(TIMES.good_s * 0.62)
        assert await guard.admits(source) is True
        await asyncio.sleep(0.03)
        assert await guard.admits(source) is False


async def test_the_table_is_bounded() -> None:
    async with SourceGuard(TIMES) as guard:
        for number in range(200):
            await guard.admits(Endpoint(f"127.0.1.{number}", 9))
        assert guard.known == TIMES.table_entries


def unknown(host: str) -> list[str]:
    """A name service that knows no name."""
    raise socket.gaierror(socket.EAI_NONAME, host)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 63 + "." + "y" * 63, "::1", "300.1.1.1"])
async def test_a_host_that_cannot_be_connected_to_is_not_admitted(host: str) -> None:
    async with SourceGuard(TIMES, Resolver(unknown)) as guard:
        assert await guard.admits(Endpoint(host, 9)) is False


@pytest.fixture
def hanging() -> Iterator[Resolver]:
    """A resolver whose look-ups do not end before the test does."""
    release = threading.Event()

    def lookup(host: str) -> list[str]:
        release.wait(10)
        return []

    yield Resolver(lookup)
    release.set()


async def test_names_that_hang_cost_no_more_than_the_budget_and_delay_no_other_source(
    hanging: Resolver,
) -> None:
    times = GuardTimes(budget_s=0.3, good_s=0.4, bad_s=0.1, table_entries=64)
    async with listening() as listener, SourceGuard(times, hanging) as guard:
        started_s = monotonic()
        sources = [Endpoint(f"hangs-{number}.example", 9) for number in range(40)]
        asked = [asyncio.ensure_future(guard.admits(source)) for source in sources]
        await asyncio.sleep(0)
        assert await guard.admits(Endpoint("localhost", listener.port)) is True
        assert await asyncio.gather(*asked) == [False] * 40
        assert monotonic() - started_s < times.budget_s + 0.2
    assert monotonic() - started_s < times.budget_s + 0.4


async def test_a_source_that_falls_out_of_the_table_takes_its_probe_with_it(hanging: Resolver) -> None:
    patient = GuardTimes(budget_s=5, good_s=0.4, bad_s=0.1, table_entries=2)
    before = asyncio.all_tasks()
    async with SourceGuard(patient, hanging) as guard:
        started_s = monotonic()
        names = [f"hangs-{number}.example" for number in (0, 1, 2, 0, 1, 2)]
        asked = [asyncio.ensure_future(guard.admits(Endpoint(name, 9))) for name in names]
        await asyncio.sleep(0.02)
        assert [task.done() for task in asked] == [True] * 4 + [False] * 2
        assert [task.result() for task in asked[:4]] == [False] * 4
        assert len(asyncio.all_tasks() - before) == 4  # two requests and their probes
    assert await asyncio.gather(*asked) == [False] * 6
    assert asyncio.all_tasks() == before
    assert monotonic() - started_s < 0.9  # a probe gives up after 1 s


async def test_what_was_known_of_a_source_is_no_answer_for_a_probe_that_was_cancelled() -> None:
    times = GuardTimes(budget_s=5, good_s=0.01, bad_s=0.1, table_entries=1)
    async with SourceGuard(times) as guard:
        async with listening() as listener:
            source = Endpoint("127.0.0.1", listener.port)
            assert await guard.admits(source) is True
        await asyncio.sleep(times.good_s * 1.3)
        asked = asyncio.ensure_future(guard.admits(source))
        await asyncio.sleep(0)
        await guard.admits(refusing())
        assert await asked is False


async def test_a_dead_source_is_not_pulled_from_and_the_request_goes_on_unchanged() -> None:
    flags = ("--kv-connector=offloading",)
    async with scripted() as engine, serving(engine.port, *flags) as sidecar:
        answer = await sidecar.post(headers=[(SOURCE, "127.9.8.7:8000")])

        assert (answer.status, engine.last.body) == (200, BODY)


async def test_a_live_source_is_pulled_from() -> None:
    async with listening("127.9.8.6") as p2p, scripted() as engine:
        port = f"--p2p-connector-port={p2p.port}"
        flags = ("--kv-connector=offloading", port, "--source-guard-timeout=2s")
        async with serving(engine.port, *flags) as sidecar:
            await sidecar.post(headers=[(SOURCE, "127.9.8.6:8000")])

            source = engine.last.json["kv_transfer_params"]["remote_kv_source"]
            assert (source["remote_host"], source["remote_port"]) == ("127.9.8.6", p2p.port)
