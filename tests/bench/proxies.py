"""The running proxies, and the scripted engine, load and collector of spans around them.

Rule: each proxy is started alone and is ready when it has answered one request.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from tests.bench.commands import Command
from tests.bench.engine import SOURCE_HOST
from tests.bench.load import Outcome, Run
from tests.bench.processes import process, rss_mb

_READY_S = 30.0
_PROBE_S = 0.005
_PROBE = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    b'content-length: 27\r\n\r\n{"model":"m","messages":[]}'
)


@dataclass(slots=True)
class Proxy:
    """A running proxy. ready_s: from its start to its first answer. idle_mb: its memory then."""

    name: str
    port: int
    pid: int
    ready_s: float
    idle_mb: float


@dataclass(slots=True)
class Bench:
    """The engine, the load and the collector, running, and what keeps all processes. router: its command."""

    engine_port: int
    p2p_port: int
    sink_port: int
    load: subprocess.Popen[str]
    sink: subprocess.Popen[str]
    stack: ExitStack
    logs: Path
    router: Path = Path("vllm-router")
    proxies: dict[str, Proxy] = field(default_factory=dict)

    def start(self, name: str, command: Command) -> Proxy:
        """Start a proxy for as long as the benchmark runs; see `running`."""
        proxy = self.stack.enter_context(self.running(name, command))
        self.proxies[name] = proxy
        return proxy

    @contextlib.contextmanager
    def running(self, name: str, command: Command) -> Iterator[Proxy]:
        """Start a proxy and wait until it relays. Raises RuntimeError with its last words if it does not."""
        port = _free_port()
        places = {
            "python": sys.executable,
            "port": port,
            "engine": self.engine_port,
            "p2p": self.p2p_port,
            "metrics": _free_port(),
            "sink": self.sink_port,
            "router": shlex.quote(str(self.router)),
        }
        words = shlex.split(command.line.format(**places))
        environ = {key: value.format(**places) for key, value in command.environ.items()}
        log = self.logs / f"{name}.log"
        began_s = monotonic()
        with process(words, log, environ=environ) as child:
            while not _relays(port):
                if child.poll() is not None or monotonic() - began_s > _READY_S:
                    raise RuntimeError(
                        f"{name} does not answer: {shlex.join(words)}\n{log.read_text()[-2000:]}"
                    )
                sleep(_PROBE_S)
            yield Proxy(name, port, child.pid, monotonic() - began_s, rss_mb(child.pid))

    def run(self, run: Run) -> Outcome:
        """Make the load do a run."""
        assert self.load.stdin
        self.load.stdin.write(json.dumps(asdict(run)) + "\n")
        self.load.stdin.flush()
        return Outcome(**_told(self.load))

    def pulls(self) -> int:
        """How many requests with a directive to pull the engine has had."""
        request = b"GET /counts HTTP/1.1\r\nhost: engine\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.engine_port), _READY_S) as sock:
            sock.sendall(request)
            answer = sock.recv(65536)
        count: int = json.loads(answer.partition(b"\r\n\r\n")[2])["pulls"]
        return count

    def spans(self) -> int:
        """How many spans the collector has had."""
        assert self.sink.stdin
        self.sink.stdin.write("spans\n")
        self.sink.stdin.flush()
        count: int = _told(self.sink)["spans"]
        return count

    def source(self) -> str:
        """The KV source that requests name: not this engine, and its P2P port accepts connections."""
        return f"{SOURCE_HOST}:{self.engine_port}"


@contextlib.contextmanager
def bench(logs: Path) -> Iterator[Bench]:
    """The engine, the load and the collector; they and every proxy started by it end with the block."""
    with ExitStack() as stack:
        engine, load, sink = (
            stack.enter_context(
                process([sys.executable, "-m", f"tests.bench.{name}"], logs / f"{name}.log", piped=True)
            )
            for name in ("engine", "load", "sink")
        )
        ports = _told(engine)
        yield Bench(ports["port"], ports["p2p_port"], _told(sink)["port"], load, sink, stack, logs)


def _told(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout
    line = child.stdout.readline()
    if not line:
        raise RuntimeError(f"a process of the benchmark ended: {child.args!r}")
    told: dict[str, Any] = json.loads(line)
    return told


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _relays(port: int) -> bool:
    """Whether one request is answered with 200."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as sock:
            sock.settimeout(_READY_S)
            sock.sendall(_PROBE)
            return sock.recv(4096).startswith(b"HTTP/1.1 200")
    except OSError:
        return False
