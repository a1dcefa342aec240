"""What a proxy costs while it does nothing: to start, to wait, to hold streams that say nothing.

Rule: what a process has done before changes its memory, so starts and streams are measured on fresh ones.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic, sleep

from tests.bench.commands import Command
from tests.bench.jobs import JOBS, SOURCE_HEADER
from tests.bench.load import Run, request_of
from tests.bench.measure import run_of
from tests.bench.processes import cpu_s, rss_mb
from tests.bench.proxies import Bench, Proxy

# What any FastAPI service pays before its first line runs: what starts are compared with.
_IMPORTS = "import fastapi, uvicorn"
STREAMS = 1_000
# The naive proxy opens 200 a second.
_OPENED_S = 60.0
# Each is silent for longer than it is looked at.
_SILENCE_MS = 600_000
# What is freed right after a burst is not what a stream costs.
_SETTLE_S = 0.5
_WARM_UP_S = 0.3


@dataclass(slots=True)
class Standing:
    """By proxy. start_s: to the first answer, of each start. idle_percent: of a core. stream_kb: per stream.

    import_s: how long the imports alone take, once beside each start.
    """

    import_s: list[float] = field(default_factory=list)
    start_s: dict[str, list[float]] = field(default_factory=dict)
    idle_percent: dict[str, float] = field(default_factory=dict)
    stream_kb: dict[str, float] = field(default_factory=dict)


def starts(bench: Bench, asked: Iterable[tuple[str, Command]], times: int, standing: Standing) -> None:
    """Start each proxy again and again, beside the imports alone."""
    columns = list(asked)
    for _ in range(times):
        began_s = monotonic()
        subprocess.run([sys.executable, "-c", _IMPORTS], check=True)
        standing.import_s.append(monotonic() - began_s)
        for name, command in columns:
            with bench.running(f"{name}-start", command) as proxy:
                standing.start_s.setdefault(name, []).append(proxy.ready_s)


def streams(bench: Bench, asked: Iterable[tuple[str, Command]], standing: Standing) -> None:
    """Hold many silent streams through a fresh process of each proxy, and see what its memory grows by."""
    for name, command in asked:
        with bench.running(f"{name}-streams", command) as proxy:
            small = next(job for job in JOBS if job.name == "small")
            bench.run(run_of(small, bench, proxy.port, _WARM_UP_S))
            before_mb = rss_mb(proxy.pid)
            grown_mb = _held(bench, proxy) - before_mb
            standing.stream_kb[name] = grown_mb * 1024 / STREAMS


def idle(bench: Bench, asked: Iterable[str], seconds: float, standing: Standing) -> None:
    """The share of a core that each proxy uses while nobody asks it anything."""
    proxies = [bench.proxies[name] for name in asked]
    before_s = [cpu_s(proxy.pid) for proxy in proxies]
    began_s = monotonic()
    sleep(seconds)
    for proxy, used_s in zip(proxies, before_s, strict=True):
        share = (cpu_s(proxy.pid) - used_s) / (monotonic() - began_s)
        standing.idle_percent[proxy.name] = 100 * share


def _held(bench: Bench, proxy: Proxy) -> float:
    """The proxy's memory in MB while it holds the streams."""
    header = SOURCE_HEADER.format(source=bench.source())
    request = request_of(Run(proxy.port, 1, 0.0, 2_000, 2, _SILENCE_MS, (header,)))
    sockets: list[socket.socket] = []
    try:
        for _ in range(STREAMS):
            sock = socket.create_connection(("127.0.0.1", proxy.port), _OPENED_S)
            sockets.append(sock)
            sock.sendall(request)
        _wait_for_first_events(proxy.name, sockets)
        sleep(_SETTLE_S)
        return rss_mb(proxy.pid)
    finally:
        for sock in sockets:
            sock.close()


def _wait_for_first_events(name: str, sockets: Iterable[socket.socket]) -> None:
    """Read until each has had an event. Raises RuntimeError when one has not in time."""
    poll, seen = select.epoll(), {sock.fileno(): (sock, b"") for sock in sockets}
    for fd in seen:
        poll.register(fd, select.EPOLLIN)
    deadline_s = monotonic() + _OPENED_S
    while seen:
        if monotonic() > deadline_s:
            raise RuntimeError(f"{name}: {len(seen)} of {STREAMS} silent streams have not begun")
        for fd, _ in poll.poll(1.0):
            sock, got = seen[fd]
            piece = sock.recv(65536)
            if not piece:
                raise RuntimeError(f"{name}: a silent stream was closed after {got[:100]!r}")
            seen[fd] = (sock, got + piece)
            if b"\n\n" in got + piece:
                poll.unregister(fd)
                del seen[fd]
    poll.close()
