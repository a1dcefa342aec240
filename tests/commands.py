"""Runs the command as a process, as a user does."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.test_answers import closed_port


class Command:
    """A running `sidecar`."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, directory: Path) -> None:
        self.process = process
        self.port = port
        self._directory = directory

    @property
    def log(self) -> str:
        """What it wrote on standard error."""
        return (self._directory / "stderr").read_text()

    @property
    def output(self) -> str:
        """What it wrote on standard output: spans, where they are exported to the console."""
        return (self._directory / "stdout").read_text()

    async def ended(self) -> int:
        """Its exit code."""
        async with asyncio.timeout(40):
            return await self.process.wait()


@asynccontextmanager
async def command(
    tmp_path: Path,
    engine_port: int,
    *flags: str,
    plain: bool = True,
    ready: bool = True,
    ports: int = 1,
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[Command]:
    """Run it, wait until it serves, and end it. ports: how many it needs in a row."""
    port = closed_ports(ports)
    args = [f"--port={port}", f"--model-server-port={engine_port}", *flags]
    args += ["--secure-serving=false"] if plain else []
    log = tmp_path / "stderr"
    with log.open("wb") as stderr, (tmp_path / "stdout").open("wb") as stdout:
        env = {**os.environ, **(environ or {})}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sidecar", *args, stdout=stdout, stderr=stderr, env=env
        )
        try:
            async with asyncio.timeout(40):
                while ready and not await listens(port):
                    assert process.returncode is None, log.read_text()
                    await asyncio.sleep(0.05)
            yield Command(process, port, tmp_path)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def listens(port: int) -> bool:
    """Whether somebody accepts connections there."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


def closed_ports(count: int) -> int:
    """The first of so many ports in a row that nobody has.

    Several are taken below those that the kernel gives to connections (net.ipv4.ip_local_port_range).
    """
    for _ in range(100):
        first = random.randrange(20_000, 32_000) if count > 1 else closed_port()
        taken = [socket.socket() for _ in range(count)]
        try:
            for number, sock in enumerate(taken):
                sock.bind(("127.0.0.1", first + number))
        except (OSError, OverflowError):
            continue
        finally:
            for sock in taken:
                sock.close()
        return first
    raise AssertionError("no free ports in a row")
