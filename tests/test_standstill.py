"""A test that fails while the machine stands still is run again; one that fails otherwise is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TEST = """
import pathlib, subprocess
RUNS = pathlib.Path(__file__).with_name("runs")

def stand_still():
    subprocess.run(["sh", "-c", "kill -STOP $PPID; sleep 0.3; kill -CONT $PPID"], check=True)

def test_it(tmp_path):
    with RUNS.open("a") as runs:
        runs.write("x")
    run = len(RUNS.read_text())
    assert list(tmp_path.iterdir()) == []
    tmp_path.joinpath("used").touch()
    %s

def test_another():
    pass
"""


@pytest.mark.parametrize(
    ("body", "runs", "passes", "repeated"),
    [
        ("if run == 1: stand_still(); assert False", 2, True, 1),
        ("stand_still()", 1, True, 0),
        ("assert False", 1, False, 0),
        ("stand_still(); assert False", 3, False, 2),
    ],
    ids=["once", "passes all the same", "without a reason", "always"],
)
def test_a_failure_counts_unless_the_machine_stood_still(
    body: str, runs: int, *, passes: bool, repeated: int, tmp_path: Path
) -> None:
    file = tmp_path / "test_made.py"
    file.write_text(TEST % body)
    plain = ("-c", "/dev/null", "-p", "no:cacheprovider", "-p", "tests.conftest", "--rootdir", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plain, str(file)], capture_output=True, text=True, check=False
    )
    assert (tmp_path / "runs").read_text() == "x" * runs
    assert done.returncode == (0 if passes else 1), done.stdout
    assert done.stdout.count("::test_it (still for 0.") == repeated
    assert f"{1 + passes} passed" in done.stdout
