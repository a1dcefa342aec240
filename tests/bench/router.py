"""Installs vllm-router, a compiled router to compare with, into an environment of its own.

Rule: done once, from the package index; the version is pinned, because a figure without one says nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VERSION = "0.1.17"
"""The one that the limits of limits.py were set beside; its part that relays is Rust."""

# 24 MB and some 30 packages; 10 seconds where this was written.
_STEP_S = 300


def install() -> Path:
    """The command `vllm-router`, installed if it is not there. Raises RuntimeError.

    The environment is `$VLLM_ROUTER_VENV`, by default below the user's cache.
    """
    home = (
        os.environ.get("VLLM_ROUTER_VENV") or Path.home() / ".cache/sidecar-bench" / f"vllm-router-{VERSION}"
    )
    place = Path(home)
    command = place / "bin" / "vllm-router"
    if not command.exists():
        sys.stderr.write(f"bench: installing vllm-router {VERSION} into {place}\n")
        _run("make its environment", sys.executable, "-m", "venv", str(place))
        pip = (str(place / "bin" / "python"), "-m", "pip", "install", "-qq", "--no-input")
        _run("install it", *pip, f"vllm-router=={VERSION}")
    return command


def _run(step: str, *command: str) -> None:
    try:
        subprocess.run(command, check=True, timeout=_STEP_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"vllm-router: cannot {step}: {error}") from None
