"""The benchmark itself still works: one very short round of its cheapest job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.bench.processes import ROOT


def test_a_short_round_has_no_errors_and_every_request_pulls(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ["--only=small", "--proxies=floor,sidecar", "--seconds=0.1", "--rounds=1", f"--json={report}"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", *options], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    # What it says on standard error of limits and load is right on a busy machine; of errors there are none.
    assert (done.returncode, "errors:" in done.stderr) == (0, False), done.stderr
    assert "request, prompt of 2 KB" in done.stdout
    measured = json.loads(report.read_text())
    assert measured["errors"] == 0
    floor, sidecar = measured["figures"]["small"]["floor"], measured["figures"]["small"]["sidecar"]
    assert floor["cpu_us"][0] > 0
    assert sidecar["cpu_us"][0] > 0
    assert sidecar["pulls"] == sidecar["answers"] > 0
