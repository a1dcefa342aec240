"""The allocator keeps what large bodies used."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from sidecar.heap import keep_freed_memory

FAULTS = """
import resource
from sidecar.heap import keep_freed_memory
assert keep_freed_memory({}) is %s
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    b"".join([bytes(400_000), bytes(400_000)])
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.parametrize("variable", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"])
def test_glibcs_own_variables_are_left_in_force(variable: str) -> None:
    assert keep_freed_memory({variable: "1"}) is False


def test_large_bodies_cost_page_faults_once_and_not_each_time() -> None:
    glibc = platform.libc_ver()[0] == "glibc"
    run = subprocess.run([sys.executable, "-c", FAULTS % glibc], capture_output=True, text=True, check=True)
    # 800 KB are 196 pages: 39,000 faults when each of the 200 rounds begins anew.
    assert int(run.stdout) < (2_000 if glibc else 10**9)


def test_once_all_is_built_cycles_are_looked_for_seldom_and_not_in_it() -> None:
    code = "import gc; from sidecar.heap import collect_seldom; collect_seldom(); "
    code += "print(gc.get_freeze_count() > 1000, gc.get_threshold()[0], gc.isenabled())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "20000", "True"]
