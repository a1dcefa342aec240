"""The wall clock may jump: nothing that waits, expires or is measured looks at it."""

from __future__ import annotations

import ast
import itertools
import logging
import time
from pathlib import Path

import pytest

import sidecar
from tests.faults.ways import WAYS, has_right_answer, pod

# Where the wall clock's time is what is told: log lines, spans, debug pages, the life of a certificate that
# is made at start, and what the doctor compares clocks by and dates its rounds with.
TELLS_THE_TIME = {
    "debug/endpoints.py",
    "doctor/asking.py",
    "doctor/cli.py",
    "logs.py",
    "observers/recorded.py",
    "observers/ring.py",
    "observers/tracing.py",
    "server/tls.py",
}
_WALL = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime"}
_CLOCKS = {"time", "datetime", "date"}


def wall_clock_uses(source: str) -> list[str]:
    """Expressions of a module that read the wall clock."""
    found = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and node.attr in _WALL
        and isinstance(node.value, ast.Name | ast.Attribute)
        and ast.unparse(node.value).rpartition(".")[2] in _CLOCKS
    ]
    return [ast.unparse(node) for node in found]


def test_only_what_tells_the_time_reads_the_wall_clock() -> None:
    root = Path(sidecar.__file__).parent
    files = [path for path in root.rglob("*.py") if "lab" not in path.relative_to(root).parts]
    users = {str(path.relative_to(root)) for path in files if wall_clock_uses(path.read_text())}
    assert users <= TELLS_THE_TIME
    assert wall_clock_uses("import time\nx = time.time() + datetime.datetime.now()") != []


@pytest.mark.parametrize("name", WAYS)
async def test_a_clock_that_jumps_days_changes_neither_answers_nor_durations(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sidecar.exchange")
    zero_s = time.time()
    jumps = itertools.cycle((-86_400.0, 0.0, 1e6))
    monkeypatch.setattr(time, "time", lambda: zero_s + next(jumps))
    monkeypatch.setattr(time, "time_ns", lambda: int((zero_s + next(jumps)) * 1e9))
    async with pod(name, "--source-guard=on") as served:
        for stream in (False, True, False):
            said = await served.sidecar.post(body=served.way.body(stream=stream), headers=served.headers)
            assert has_right_answer(said.body)
    lines = [entry.__dict__["fields"] for entry in caplog.records if entry.getMessage() == "exchange"]
    assert len(lines) == 3
    for line in lines:
        for timed in (line, *line["legs"]):
            # A leg beside the answer may still run when the line is written.
            assert timed["duration_ms"] is None or 0 <= timed["duration_ms"] < 15_000
