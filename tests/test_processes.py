"""Several serving processes: the command with `--workers`, and the parent that keeps them running."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from time import monotonic

import pytest

from tests.commands import Command, command, listens
from tests.engines import Answer, Got, ScriptedEngine, complete, scripted
from tests.serving import post, read_answer
from tests.test_answers import closed_port
from tests.test_metrics_port import ask, get, numbers

TWO = "--workers=2"
# So many connections that both workers surely have some: the kernel deals them out by a hash of the address.
MANY = 24

# Seconds for what takes a fraction of one on a machine with nothing else to do.
BOUND_S = 40.0
# States of sockets (Linux include/net/tcp_states.h).
ESTABLISHED, LISTEN = "01", "0A"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def children(pid: int) -> list[int]:
    """The processes that a process has, ended ones too that nobody has waited for."""
    with suppress(FileNotFoundError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def sockets(pid: int, port: int, state: str = ESTABLISHED) -> int:
    """How many sockets of that state a process has at that local port (proc(5), /proc/net/tcp6)."""
    lines = [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    there = {f"socket:[{at[9]}]" for at in lines if at[1].endswith(f":{port:04X}") and at[3] == state}
    with suppress(OSError):
        return len([link for link in Path(f"/proc/{pid}/fd").iterdir() if os.readlink(link) in there])
    return 0


def state(pid: int) -> str:
    """R, S, ...; Z for one that has ended and was not waited for, "" for none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


async def until(true: object, what: str) -> None:
    """Wait until `true()` is."""
    assert callable(true)
    ends_s = monotonic() + BOUND_S
    while not true():
        assert monotonic() < ends_s, what
        await asyncio.sleep(0.02)


async def workers(sidecar: Command, count: int = 2) -> list[int]:
    """The serving processes, once all of them listen.

    They are looked up anew each time: a killed one is a child, too, until it was waited for.
    """
    pids: list[int] = []

    def all_listen() -> bool:
        there = children(sidecar.process.pid)
        pids[:] = [pid for pid in there if sockets(pid, sidecar.port, LISTEN)]
        return len(pids) == len(there) == count

    await until(all_listen, "no workers")
    return pids  # of the look that found all: the kernel's table may leave out lines while it changes


async def connected(port: int, count: int = MANY) -> list[Connection]:
    """Fresh connections, each with an answer so that somebody has accepted it."""
    pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    for reader, writer in pairs:
        writer.write(get("/health"))
        assert (await read_answer(reader)).status == 200
    return pairs


async def posted(port: int, engine: ScriptedEngine) -> list[Connection]:
    """Connections with a request each, all of which the engine has."""
    pairs = await connected(port)
    for _, writer in pairs:
        writer.write(post())
    await engine.came(MANY)
    return pairs


async def close(pairs: Sequence[Connection]) -> None:
    """End the connections."""
    for _, writer in pairs:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def answers(pairs: Sequence[Connection]) -> list[tuple[int, bool]]:
    """The status of each connection's answer, and whether it is whole."""
    async with asyncio.timeout(BOUND_S):
        outcomes = [await _outcome(reader) for reader, _ in pairs]
    await close(pairs)
    return outcomes


async def _outcome(reader: asyncio.StreamReader) -> tuple[int, bool]:
    try:
        answer = await read_answer(reader)
    except (ValueError, OSError):  # cut off in its head
        return 0, False
    return answer.status, answer.whole


async def stream(got: Got, answer: Answer) -> None:
    """0.6 s of events."""
    await answer.events(*(b"data: %d\n\n" % number for number in range(12)), gap_s=0.05)


async def test_connections_are_dealt_out_and_the_start_line_is_said_once(tmp_path: Path) -> None:
    async with scripted(complete) as engine, command(tmp_path, engine.port, TWO) as sidecar:
        pids = await workers(sidecar)
        pairs = await connected(sidecar.port)
        shares: list[int] = []

        def all_seen() -> bool:
            shares[:] = [sockets(pid, sidecar.port) for pid in pids]
            return sum(shares) == MANY

        await until(all_seen, "connections are missing")
        assert min(shares) >= 3
        await close(pairs)
        lines = [line for line in sidecar.log.splitlines() if line.startswith("sidecar ")]
        assert len(lines) == 1
        assert ", 2 workers; try: curl " in lines[0]


async def test_one_scrape_tells_of_all_processes(tmp_path: Path) -> None:
    metrics = closed_port()
    flags = (TWO, f"--metrics-port={metrics}")
    async with scripted(complete) as engine, command(tmp_path, engine.port, *flags) as sidecar:
        await workers(sidecar)
        for _ in range(MANY):
            assert (await ask(sidecar.port, post())).status == 200
        for _ in range(4):
            counts = await numbers(metrics)
            assert counts['requests_total{api_type="chat_completions"}'] == MANY
            assert counts["decode_duration_seconds_count"] == MANY


async def test_sigterm_lets_every_process_finish_and_exits_0(tmp_path: Path) -> None:
    async with scripted(stream) as engine, command(tmp_path, engine.port, TWO) as sidecar:
        pids = await workers(sidecar)
        pairs = await posted(sidecar.port, engine)
        sidecar.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(BOUND_S):
            while await listens(sidecar.port):
                await asyncio.sleep(0.02)
        assert await answers(pairs) == [(200, True)] * MANY
        assert await sidecar.ended() == 0
        assert [state(pid) for pid in pids] == ["", ""]
        assert "Traceback" not in sidecar.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_to_every_process_lets_all_finish(tmp_path: Path, number: signal.Signals) -> None:
    async with scripted(stream) as engine, command(tmp_path, engine.port, TWO) as sidecar:
        pids = await workers(sidecar)
        pairs = await posted(sidecar.port, engine)
        for pid in (sidecar.process.pid, *pids, *pids):  # as of systemd, and once more
            os.kill(pid, number)
        assert await answers(pairs) == [(200, True)] * MANY
        assert await sidecar.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_what_still_runs_in_every_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    async def script(got: Got, answer: Answer) -> None:
        await asyncio.sleep(30)

    async with scripted(script) as engine, command(tmp_path, engine.port, TWO) as sidecar:
        await workers(sidecar)
        pairs = await posted(sidecar.port, engine)
        for _ in range(2):
            sidecar.process.send_signal(number)
            await asyncio.sleep(0.3)
        assert await answers(pairs) == [(503, True)] * MANY
        assert await sidecar.ended() == 0


async def test_the_grace_is_that_of_each_process(tmp_path: Path) -> None:
    async def script(got: Got, answer: Answer) -> None:
        await asyncio.sleep(30)

    flags = (TWO, "--shutdown-grace=1s")
    async with scripted(script) as engine, command(tmp_path, engine.port, *flags) as sidecar:
        await workers(sidecar)
        pairs = await posted(sidecar.port, engine)
        sidecar.process.terminate()
        assert await answers(pairs) == [(503, True)] * MANY
        assert await sidecar.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_process_that_ends_by_itself_is_started_again_and_the_others_go_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    metrics = closed_port()
    flags = (TWO, f"--metrics-port={metrics}")
    async with scripted(stream) as engine, command(tmp_path, engine.port, *flags) as sidecar:
        pids = await workers(sidecar)
        pairs = await posted(sidecar.port, engine)
        os.kill(pids[0], number)
        whole = [outcome == (200, True) for outcome in await answers(pairs)]
        # Killed, it cuts its own; told to stop, it finishes them. The other's are never touched.
        assert 3 <= sum(whole) <= MANY - 3 if number is signal.SIGKILL else all(whole)

        await until(lambda: state(pids[0]) == "", "a zombie")
        again = await workers(sidecar)
        assert pids[1] in again
        assert pids[0] not in again
        assert (await ask(sidecar.port, post())).status == 200
        counts = await numbers(metrics)
        assert counts["worker_restarts_total"] == 1.0
        assert counts['requests_total{api_type="chat_completions"}'] == MANY + 1
        code = -9 if number is signal.SIGKILL else 0
        logged = rf'"process":"rank 0 worker [01]","pid":{pids[0]},"exit_code":{code},"restart_in_s":0.1'
        assert re.search(logged, sidecar.log)
        sidecar.process.terminate()
        assert await sidecar.ended() == 0


async def test_no_process_outlives_the_parent(tmp_path: Path) -> None:
    async with scripted() as engine, command(tmp_path, engine.port, TWO) as sidecar:
        pids = await workers(sidecar)
        sidecar.process.kill()
        assert await sidecar.ended() == -signal.SIGKILL
        await until(lambda: all(state(pid) in ("", "Z") for pid in pids), "a process outlived its parent")
        assert not await listens(sidecar.port)


@pytest.mark.parametrize("options", [0, socket.SO_REUSEPORT])
async def test_a_taken_port_is_said_in_one_line(tmp_path: Path, options: int) -> None:
    with socket.socket() as taken:
        if options:
            taken.setsockopt(socket.SOL_SOCKET, options, 1)
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with command(tmp_path, 1, TWO, f"--port={port}", ready=False) as sidecar:
            assert await sidecar.ended() == 1
            assert sidecar.log == f"sidecar: --port: cannot listen on *:{port}: Address already in use\n"


async def test_what_is_wrong_with_tracing_is_said_once(tmp_path: Path) -> None:
    environ = {"OTEL_TRACES_EXPORTER": "carrier-pigeon"}
    async with command(tmp_path, 1, TWO, "--tracing", ready=False, environ=environ) as sidecar:
        assert await sidecar.ended() == 2
        assert re.fullmatch(r"sidecar: .*OTEL_TRACES_EXPORTER.*carrier-pigeon.*\n", sidecar.log)


_PARENT = r"""
import os, signal, sys, time
from sidecar import logs, processes
from sidecar.processes import Calls, Job, supervise

logs.configure("error", "json")

def say(line):
    os.write(1, f"{line}\n".encode())  # whole: print() may write a line's end apart, behind another's line

def crash():
    say(f"{time.monotonic():.3f}")
    return 3

def stuck():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say("stuck")
    while True:
        time.sleep(60)

def calm():
    say("calm")
    signal.sigwait([signal.SIGTERM])
    return 0

jobs = {"crash": crash, "stuck": stuck, "calm": calm}
calls = Calls(stopping=lambda: say("stopping"), restarted=lambda: None)
sys.exit(supervise([Job(name, jobs[name]) for name in sys.argv[2:]], calls, float(sys.argv[1])))
"""


@asynccontextmanager
async def parent(grace: str, *jobs: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A parent of these jobs, which is gone in any case when the block ends."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PARENT, grace, *jobs),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()


async def said(process: asyncio.subprocess.Process) -> str:
    """Its next line."""
    assert process.stdout
    async with asyncio.timeout(BOUND_S):
        return (await process.stdout.readline()).decode().strip()


async def test_one_that_keeps_ending_is_started_less_and_less_often() -> None:
    async with parent("1", "crash") as process:
        times_s = [float(await said(process)) for _ in range(4)]
        process.terminate()
        gaps_s = [after - before for before, after in pairwise(times_s)]
        assert [low <= gap < low + 1.0 for gap, low in zip(gaps_s, (0.1, 0.2, 0.4), strict=True)] == [
            True
        ] * 3
        output, errors = await process.communicate()
        assert (output.decode().split(), process.returncode) == (["stopping"], 0)
        assert errors.count(b'"exit_code":3') >= 3


async def test_one_that_does_not_end_in_time_is_killed_and_said() -> None:
    # The time that a process has past its grace is 10 s (sidecar/processes.py): this grace is below zero.
    async with parent("-9.7", "stuck", "calm") as process:
        assert {await said(process), await said(process)} == {"stuck", "calm"}
        process.terminate()
        _, errors = await process.communicate()
        assert process.returncode == 1
        assert b"did not end in time and is killed" in errors
