"""The processes of a benchmark: started in groups of their own, looked at through /proc, always ended.

Rule: whatever was started ends when its `with` block does, with everything that it started itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Without what would change how a sidecar traces.
_INHERITED = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
# A proxy that has no connection left has nothing to wait for; after this it is killed.
_END_S = 5.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def process(
    command: Sequence[str], log: Path, *, piped: bool = False, environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a command as a group of its own, its words in `log`; piped: with standard input and output."""
    with log.open("w") as words:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else words,
            stderr=words,
            text=True,
            cwd=ROOT,
            env={**_INHERITED, **(environ or {})},
            start_new_session=True,
        )
    try:
        yield child
    finally:
        _end(child)


def _end(child: subprocess.Popen[str]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    for sig in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, sig)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_END_S)


def tree(root: int) -> list[int]:
    """The process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_s(root: int) -> float:
    """CPU time, user and system, that the tree has used, ended children among it."""
    return sum(_own_cpu_s(pid) + _ended_children_cpu_s(pid) for pid in tree(root))


def _own_cpu_s(pid: int) -> float:
    """Of one process with all its threads, in nanoseconds where /proc/PID/stat counts 10 ms.

    The clock that clock_getcpuclockid(3) returns for a process; Python has no call for it. The number is made
    as Linux makes it (include/linux/posix-timers.h, make_process_cpuclock with CPUCLOCK_SCHED).
    """
    with contextlib.suppress(OSError):  # it has ended, and its parent's account has its time
        return time.clock_gettime(~pid << 3 | 2)
    return 0.0


def _ended_children_cpu_s(pid: int) -> float:
    """Fields 16 and 17 of /proc/PID/stat (proc(5)): cutime and cstime."""
    fields = _stat(pid)
    return sum(map(int, fields[13:15])) * _TICK_S if fields else 0.0


def rss_mb(root: int) -> float:
    """Resident memory of the tree; pages that its processes share count for each."""
    kilobytes = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
            kilobytes += int(found[1]) if found else 0
    return kilobytes / 1024


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third (state) on; None when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
