"""How large the extremes are: scaled down in the suite, in full with EXTREMES=full (`make test-extremes`).

Rule: what is cheap in full is always in full; a size here is one that takes seconds or many open files.
"""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sizes:
    """streams: open at the same time. slow_readers: among fast ones. flood_bytes: of the answer that a slow
    reader gets. trickled_bytes: uploaded one by one.
    """

    streams: int
    slow_readers: int
    flood_bytes: int
    trickled_bytes: int


_FULL = Sizes(streams=2_000, slow_readers=50, flood_bytes=200_000_000, trickled_bytes=1_400)
# A trickle in full takes 70 s: longer than any time limit for a request's head.
_SUITE = Sizes(streams=400, slow_readers=1, flood_bytes=50_000_000, trickled_bytes=24)
SIZES = _FULL if os.environ.get("EXTREMES") == "full" else _SUITE


def allow_files(count: int) -> None:
    """Raise this process's limit of open files, which its children inherit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= count, f"open files are limited to {hard}"
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def rss_bytes(pid: int) -> int:
    """Resident memory of one process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024
