"""Installs what is missing, runs the scenarios, ends everything: `python -m tests.vllm [pytest's arguments]`.

Rule: bounded as a whole, and alone: each run ends what it finds of an earlier one. Logs stay where the last
line says. With `SIDECAR_ENGINES=embedded` the same scenarios run against the embedded engine, and nothing is
installed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

from tests.vllm.install import InstallFailed, install
from tests.vllm.places import HOME, LOGS
from tests.vllm.pods import CHOICE, chosen_kind
from tests.vllm.processes import end_leftovers

WHOLE_TIMEOUT_S = 15 * 60
"""For the scenarios; the installation has bounds of its own."""
# Long enough for fixtures to end four engines.
_INTERRUPTED_TIMEOUT_S = 60


def main(arguments: Sequence[str]) -> int:
    """Exit code: pytest's; 1 when vLLM cannot be had or another run goes on, 124 when the time ran out."""
    os.environ.setdefault(CHOICE, "vllm")
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"tests.vllm: another run is under way in {HOME}", file=sys.stderr)
            return 1
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    if chosen_kind() == "vllm":
        try:
            install()
        except InstallFailed as error:
            print(f"tests.vllm: {error}", file=sys.stderr)
            return 1
    end_leftovers()
    shutil.rmtree(LOGS, ignore_errors=True)
    try:
        return _pytest(arguments)
    finally:
        end_leftovers()
        print(f"logs and figures: {LOGS}", flush=True)


def _pytest(arguments: Sequence[str]) -> int:
    child = subprocess.Popen(
        (sys.executable, "-m", "pytest", "tests/vllm", "-ra", "--durations=10", *arguments)
    )
    try:
        return child.wait(WHOLE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        print(f"tests.vllm: not done after {WHOLE_TIMEOUT_S} s", file=sys.stderr)
        child.send_signal(signal.SIGINT)
        try:
            child.wait(_INTERRUPTED_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
        return 124


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
