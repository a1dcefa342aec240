"""A process that runs out of something: descriptors, memory. It says so, lives, and recovers by itself."""

from __future__ import annotations

import asyncio
import os
import re
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.commands import Command, command
from tests.engines import COMPLETION, Answer, Got, Script, ScriptedEngine, complete, scripted
from tests.serving import BODY, Said, post, read_answer

# More connections than a process with SPARE descriptors left can hold.
MANY = 30
SPARE = 10
LARGE_BYTES = 48 * 1024 * 1024


@asynccontextmanager
async def running(
    tmp_path: Path, *flags: str, script: Script = complete
) -> AsyncIterator[tuple[ScriptedEngine, Command]]:
    async with scripted(script) as engine, command(tmp_path, engine.port, *flags) as sidecar:
        assert (await ask(sidecar.port)).status == 200  # what is imported late is imported
        yield engine, sidecar


async def parting(got: Got, answer: Answer) -> None:
    """An engine that keeps no connection."""
    await answer.json(COMPLETION, headers=[("connection", "close")])


async def ask(port: int, body: bytes = BODY) -> Said:
    """One request on a connection of its own. Raises what the connection meets."""
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
        try:
            writer.write(post(body=body))
            return await read_answer(reader)
        finally:
            writer.transport.abort()


async def recovered(port: int) -> Said:
    """The first answer of status 200, which comes soon."""
    async with asyncio.timeout(10):
        while True:
            try:
                said = await ask(port)
            except (OSError, ValueError):  # closed at once, or without an answer
                said = Said(0, "", [])
            if said.status == 200:
                return said
            await asyncio.sleep(0.05)


def cpu_s(pid: int) -> float:
    """Seconds of processor time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def virtual_bytes(pid: int) -> int:
    """Address space in use."""
    found = re.search(r"VmSize:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


async def test_without_descriptors_requests_are_told_so_and_afterwards_all_is_well(tmp_path: Path) -> None:
    async with running(tmp_path, script=parting) as (engine, sidecar):
        pid = sidecar.process.pid
        async with asyncio.timeout(10):
            while engine.open:
                await asyncio.sleep(0.01)
        limit = len(os.listdir(f"/proc/{pid}/fd")) + SPARE
        hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
        async with AsyncExitStack() as stack:
            held = [await asyncio.open_connection("127.0.0.1", sidecar.port) for _ in range(MANY)]
            for _, writer in held:
                stack.callback(writer.transport.abort)
            await asyncio.sleep(0.2)
            before_s = cpu_s(pid)
            await asyncio.sleep(0.5)
            assert cpu_s(pid) - before_s < 0.25  # it does not spin on what it cannot accept
            reader, writer = next(pair for pair in held if not pair[0].at_eof())
            writer.write(post())
            async with asyncio.timeout(10):
                said = await read_answer(reader)
            assert (said.status, said.all("x-sidecar-error")) == (503, ["503"])
            assert "too many open files" in said.json["message"]

        assert (await recovered(sidecar.port)).json == COMPLETION
        assert sidecar.process.returncode is None
        assert "Traceback" not in sidecar.log


async def test_a_process_short_of_memory_lives_and_answers_what_it_can(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, sidecar):
        pid = sidecar.process.pid
        limit = virtual_bytes(pid) + 2 * LARGE_BYTES
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, resource.prlimit(pid, resource.RLIMIT_AS)[1]))
        large = BODY[:-1] + b',"x":"' + b"x" * LARGE_BYTES + b'"}'
        outcomes = await asyncio.gather(*(ask(sidecar.port, large) for _ in range(6)), return_exceptions=True)

        told = [said for said in outcomes if isinstance(said, Said) and said.all("x-sidecar-error")]
        assert told  # memory was short
        assert {(said.status, said.json["message"]) for said in told} == {
            (503, "the sidecar has no memory for this request")
        }
        assert (await recovered(sidecar.port)).json == COMPLETION
        assert sidecar.process.returncode is None
