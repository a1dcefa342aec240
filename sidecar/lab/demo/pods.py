"""Starts and stops the demonstration's pods: an embedded engine and the sidecar in front of it, as processes.

Rule: every process that is started here is ended here, whatever happens in between.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import IO

import httpx

# Two interpreters a pod start at once on what may be two busy cores.
_START_TIMEOUT_S = 40.0
# A process that ignores SIGTERM is killed after this long.
_STOP_TIMEOUT_S = 5.0

MODEL = "tiny"


class StartFailed(RuntimeError):
    """A process of the demonstration did not start; the message ends with what it said."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A running pod: its address, as a pod's IP; the ports of sidecar, operators and engine; the spans."""

    name: str
    ip: str
    port: int
    debug_port: int
    engine_port: int
    spans: IO[bytes]

    @property
    def netloc(self) -> str:
        """The pod as the endpoint picker names it."""
        return f"{self.ip}:{self.port}"

    @property
    def page(self) -> str:
        """The address of the sidecar's debug page."""
        return f"http://{self.ip}:{self.debug_port}/debug/"


@asynccontextmanager
async def running_pods(client: httpx.AsyncClient) -> AsyncIterator[tuple[Pod, Pod]]:
    """Pods A and B. As in a cluster they differ in their address and share their ports, but for the engine's.

    Raises StartFailed.
    """
    ips = ("127.0.0.1", "127.0.0.2")
    ports = _Ports(*_common_ports(ips, count=3))
    async with AsyncExitStack() as stack:
        pods = [await _begin(stack, name, ip, ports) for name, ip in zip(("A", "B"), ips, strict=True)]
        for pod, processes in pods:
            await _ready(client, f"http://127.0.0.1:{pod.engine_port}/health", processes[0])
            await _ready(client, f"http://{pod.netloc}/health", processes[1])
        yield pods[0][0], pods[1][0]


@dataclass(frozen=True, slots=True)
class _Ports:
    """What both pods listen on, each on its own address."""

    clients: int
    p2p: int
    operators: int


@dataclass(frozen=True, slots=True)
class _Process:
    """A child and the file that holds what it says on standard error."""

    child: asyncio.subprocess.Process
    log: IO[bytes]


async def _begin(
    stack: AsyncExitStack, name: str, ip: str, ports: _Ports
) -> tuple[Pod, tuple[_Process, _Process]]:
    [engine_port] = _common_ports(("127.0.0.1",), count=1)
    spans = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
    engine = ["lab", "engine", f"--port={engine_port}", f"--p2p-host={ip}", f"--p2p-port={ports.p2p}"]
    engine += ["--enable-prompt-tokens-details", f"--model={MODEL}", "--block-size=64"]
    sidecar = ["serve", f"--host={ip}", f"--port={ports.clients}", f"--model-server-port={engine_port}"]
    sidecar += [f"--p2p-connector-port={ports.p2p}", "--kv-connector=offloading", "--secure-serving=false"]
    sidecar += ["--tracing", f"--metrics-port={ports.operators}", "--debug-endpoints"]
    processes = (
        await stack.enter_async_context(_process(engine, {})),
        await stack.enter_async_context(_process(sidecar, {"POD_IP": ip, **_TRACING}, spans)),
    )
    return Pod(name, ip, ports.clients, ports.operators, engine_port, spans), processes


# Spans are printed by the SDK's own exporter, soon after they end; the demonstration reads them from there.
_TRACING = {
    "OTEL_TRACES_EXPORTER": "console",
    "OTEL_TRACES_SAMPLER": "always_on",
    "OTEL_BSP_SCHEDULE_DELAY": "50",
    "PYTHONUNBUFFERED": "1",
}


@asynccontextmanager
async def _process(
    args: Sequence[str], environ: dict[str, str], output: IO[bytes] | None = None
) -> AsyncIterator[_Process]:
    with tempfile.TemporaryFile() as log:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sidecar",
            *args,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output or log,
            stderr=log,
            env={**os.environ, **environ},
        )
        try:
            yield _Process(child, log)
        finally:
            await _end(child)


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is not None:
        return
    child.terminate()
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()


async def _ready(client: httpx.AsyncClient, url: str, process: _Process) -> None:
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            while True:
                if process.child.returncode is not None:
                    raise StartFailed(f"{url} ended at its start: {_said(process)}")
                try:
                    if (await client.get(url)).is_success:
                        return
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
    except TimeoutError:
        raise StartFailed(f"{url} is not ready after {_START_TIMEOUT_S:.0f} s: {_said(process)}") from None


def _said(process: _Process) -> str:
    process.log.seek(0)
    return process.log.read()[-800:].decode(errors="replace").strip() or "it said nothing"


def _common_ports(ips: Sequence[str], count: int) -> list[int]:
    """Ports that are free on every one of these addresses."""
    ports: list[int] = []
    with Held() as held:
        while len(ports) < count:
            port = held.bind(ips[0], 0)
            if port and all(held.bind(ip, port) for ip in ips[1:]):
                ports.append(port)
    return ports


class Held:
    """Holds bound sockets until it is left, so that ports that are being chosen differ."""

    def __enter__(self) -> Held:
        self._sockets: list[socket.socket] = []
        return self

    def __exit__(self, *_: object) -> None:
        for held in self._sockets:
            held.close()

    def bind(self, ip: str, port: int) -> int:
        """Bind; the port, or 0 when it is taken."""
        held = socket.socket()
        self._sockets.append(held)
        try:
            held.bind((ip, port))
        except OSError:
            return 0
        bound: int = held.getsockname()[1]
        return bound
