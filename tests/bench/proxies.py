"""The proxies that are compared, and the scripted engine and load around them.

Rule: one line of command per proxy; each is started alone and is ready when it has answered one request.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from tests.bench.engine import SOURCE_HOST
from tests.bench.load import Outcome, Run
from tests.bench.processes import process, rss_mb

_READY_S = 30.0
_PROBE_S = 0.005
_PROBE = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    b'content-length: 27\r\n\r\n{"model":"m","messages":[]}'
)

FLOOR = "floor"
SIDECAR = "sidecar"
NAIVE = "naive"
HANDOFF = "sidecar-pd"
PEER = "peer"

_SERVE = (
    "{python} -m sidecar serve --host=127.0.0.1 --port={port} --model-server-port={engine} "
    "--secure-serving=false "
)
COMMANDS: Mapping[str, str] = {
    FLOOR: "{python} -m tests.bench.floor {port} {engine}",
    SIDECAR: _SERVE + "--kv-connector=offloading --source-guard=on --p2p-connector-port={p2p}",
    HANDOFF: _SERVE + "--kv-connector=nixlv2",
    NAIVE: "{python} -m tests.bench.naive {port} {engine}",
}


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
    """The engine and the load, running, and what keeps all processes."""

    engine_port: int
    p2p_port: int
    load: subprocess.Popen[str]
    stack: ExitStack
    logs: Path
    proxies: dict[str, Proxy] = field(default_factory=dict)

    def start(self, name: str, command: str) -> Proxy:
        """Start a proxy and wait until it relays. Raises RuntimeError with its last words if it does not."""
        port = _free_port()
        words = shlex.split(
            command.format(python=sys.executable, port=port, engine=self.engine_port, p2p=self.p2p_port)
        )
        log = self.logs / f"{name}.log"
        began_s = monotonic()
        child = self.stack.enter_context(process(words, log))
        while not _relays(port):
            if child.poll() is not None or monotonic() - began_s > _READY_S:
                raise RuntimeError(f"{name} does not answer: {shlex.join(words)}\n{log.read_text()[-2000:]}")
            sleep(_PROBE_S)
        proxy = Proxy(name, port, child.pid, monotonic() - began_s, rss_mb(child.pid))
        self.proxies[name] = proxy
        return proxy

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

    def source(self) -> str:
        """The KV source that requests name: not this engine, and its P2P port accepts connections."""
        return f"{SOURCE_HOST}:{self.engine_port}"


@contextlib.contextmanager
def bench(logs: Path) -> Iterator[Bench]:
    """The engine and the load; they and every proxy started by it end with the block."""
    with ExitStack() as stack:
        engine, load = (
            stack.enter_context(
                process([sys.executable, "-m", f"tests.bench.{name}"], logs / f"{name}.log", piped=True)
            )
            for name in ("engine", "load")
        )
        ports = _told(engine)
        yield Bench(ports["port"], ports["p2p_port"], load, stack, logs)


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
