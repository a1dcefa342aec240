"""Starts programs in process groups of their own, waits until they serve, and ends them whole.

Rule: whatever is started here is ended here, and only that; every wait has a bound. What a program says goes
into a file under `LOGS`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

import httpx

from tests.vllm.places import LOGS

# Engines end within seconds of SIGTERM; one that hangs in a transfer library does not.
STOP_TIMEOUT_S = 15.0
# One engine takes 30 s on two idle cores; four at once, beside other work, take over two minutes.
START_TIMEOUT_S = 240.0
# A dying process group is looked at this often; nothing is measured with it.
_POLL_S = 0.1
_TAIL_BYTES = 3000
_SHM = "/dev/shm/"


class NotStarted(RuntimeError):
    """A program ended or did not serve in time; the message holds the last lines that it wrote."""


@dataclass(frozen=True, slots=True)
class Program:
    """A running program: `name` is that of its log file. segments: shared memory that it may leave."""

    name: str
    child: subprocess.Popen[bytes]
    segments: set[Path] = field(default_factory=set, compare=False)

    @property
    def running(self) -> bool:
        """Whether it has not ended by itself."""
        return self.child.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, number)

    def kill(self) -> None:
        """End it at once, as a node that fails does."""
        self.segments.update(self._shared_memory())
        self.signal(signal.SIGKILL)
        self._ended()

    def ask_to_end(self) -> None:
        """Begin to end it in order: several can do so at the same time, before each is stopped."""
        self.segments.update(self._shared_memory())
        self.signal(signal.SIGTERM)

    def stop(self) -> None:
        """End it in order, or at once when that takes too long."""
        self.ask_to_end()
        if not eventually(lambda: not self._group_lives(), STOP_TIMEOUT_S):
            self.signal(signal.SIGKILL)
        self._ended()

    def _ended(self) -> None:
        self.child.wait(STOP_TIMEOUT_S)
        for segment in self.segments:
            segment.unlink(missing_ok=True)
        _pid_file(self.name).unlink(missing_ok=True)

    def _shared_memory(self) -> set[Path]:
        """Segments that its processes hold; an engine that is killed leaves up to 1 GB of them behind."""
        held: set[Path] = set()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                # After the name in parentheses: state, parent, process group (proc(5)).
                group = (process / "stat").read_text().rpartition(")")[2].split()[2]
                if int(group) == self.child.pid:
                    maps = (process / "maps").read_text().splitlines()
                    held |= {Path(line[line.index(_SHM) :]) for line in maps if _SHM in line}
        return held

    def _group_lives(self) -> bool:
        self.child.poll()
        try:
            os.killpg(self.child.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def said(self) -> str:
        """The end of its log."""
        content = (LOGS / f"{self.name}.log").read_bytes()
        return content[-_TAIL_BYTES:].decode(errors="replace")


def start(name: str, command: Sequence[str], environ: Mapping[str, str]) -> Program:
    """Start a program. `environ` is added to our own variables, less those that steer telemetry or vLLM."""
    LOGS.mkdir(parents=True, exist_ok=True)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "VLLM_"))}
    with (LOGS / f"{name}.log").open("ab") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**inherited, **environ},
            start_new_session=True,
        )
    _pid_file(name).write_text(str(child.pid))
    return Program(name, child)


def end_leftovers() -> None:
    """End what an earlier run, ended by force, could not end itself."""
    for file in LOGS.glob("*.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(file.read_text()), signal.SIGKILL)
        file.unlink()


def _pid_file(name: str) -> Path:
    return LOGS / f"{name}.pid"


def until_healthy(program: Program, url: str) -> None:
    """Wait until GET `url`/health answers 200. Raises NotStarted."""

    def healthy() -> bool:
        if not program.running:
            raise NotStarted(f"{program.name} ended with {program.child.returncode}:\n{program.said()}")
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{url}/health", timeout=2).status_code == 200
        return False

    if not eventually(healthy, START_TIMEOUT_S):
        raise NotStarted(f"{program.name} does not serve after {START_TIMEOUT_S} s:\n{program.said()}")


def eventually(holds: Callable[[], bool], within_s: float) -> bool:
    """Whether a condition comes to hold within the time; it is looked at every tenth of a second."""
    end_s = monotonic() + within_s
    while not holds():
        if monotonic() > end_s:
            return False
        sleep(_POLL_S)
    return True


def free_port(*hosts: str) -> int:
    """A port that is free on all of these addresses."""
    while True:
        with contextlib.ExitStack() as stack:
            port = 0
            try:
                for host in hosts:
                    listener = stack.enter_context(socket.socket())
                    listener.bind((host, port))
                    port = listener.getsockname()[1]
            except OSError:
                continue
            return port
