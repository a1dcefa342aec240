"""The tables and verdicts are made from a document alone: played with one small enough to check by hand."""

from __future__ import annotations

from typing import Any

from tests.bench import limits, table
from tests.bench.document import View

MACHINE = {
    "time": "2026-11-30T07:00:00+00:00",
    "cpu": "A Processor",
    "cores": 2,
    "memory_gb": 8.0,
    "load_average_before": 0.25,
    "kernel": "6.1",
    "python": "3.11.7",
    "call_ns": 80,
    "commit": "abc1234",
}


def figures(cpu_us: float, *, spans: int = 0) -> dict[str, Any]:
    return {"cpu_us": [cpu_us], "answers": 10, "spans": spans, "errors": {}}


def document() -> dict[str, Any]:
    first_byte = {"first_p50_ms": [1.0], "first_p99_ms": [2.0], "answers": 10, "errors": {}}
    slower = {**first_byte, "first_p50_ms": [1.25], "first_p99_ms": [4.5]}
    return {
        "machine": MACHINE,
        "columns": ["floor", "sidecar"],
        "jobs": {
            "small": {"title": "request", "unit": "µs per request", "handoff": False},
            "pd400": {"title": "both legs", "unit": "µs per request", "handoff": True},
            "ttft1": {"title": "added", "unit": "ms", "handoff": False},
        },
        "figures": {
            "small": {
                "floor": figures(20.0),
                "sidecar": figures(100.0),
                "traced10": figures(130.0),
                "traced100": figures(150.0, spans=30),
            },
            "pd400": {"floor-pd": figures(400.0), "sidecar-pd": figures(500.0)},
            "ttft1": {"engine": first_byte, "sidecar": slower},
        },
        "proxies": {
            "floor": {"ready_s": 0.1, "idle_mb": 20.0, "after_mb": 21.0},
            "sidecar": {"ready_s": 0.9, "idle_mb": 80.0, "after_mb": 90.0},
        },
        "standing": {
            "import_s": [0.5, 0.4],
            "start_s": {"sidecar": [0.7, 0.8]},
            "idle_percent": {},
            "stream_kb": {"sidecar": 12.0},
        },
        "lasting": None,
        "left_out": {"workers2": "--workers: unknown flag"},
        "errors": 0,
    }


TABLE = """\
Measured 2026-11-30 at commit abc1234 on 2 cores (A Processor), 8 GB, Linux 6.1, Python 3.11.7 \
(an object, a call and a look-up: 80 ns); load average before the run 0.2. \
CPU time of the whole process tree; in brackets the ratio to the floor of the same run.

|  | floor | sidecar | limit of the sidecar |
| :--- | ---: | ---: | :--- |
| request, µs | 20.0 | 100 (5.00) | ≤ 6 times the floor (dream 4): met, 5.00; \
≥ 30 times less than naive: not measured |
| both legs, µs | 400 | 500 (1.25) |  |
| added, p50, ms |  | 0.25 |  |
| added, p99, ms |  | 2.50 |  |
| start to first answer, s | 0.10 | 0.75 | ≤ 1.2 times importing uvicorn + fastapi, + 0.3 s: met, 1.00 |
| memory idle, MB | 20 | 80 | ≤ 75 MB: missed, 80.00 |
| memory per idle stream, KB |  | 12.0 | ≤ 24 KB: met, 12.00 |
| memory after the run, MB | 21 | 90 |  |

| sidecar, tracing | off, µs | 10 % sampled | all sampled | spans exported | limit |
| :--- | ---: | ---: | ---: | ---: | :--- |
| request, prompt of 2 KB | 100.0 | 130 (1.30) | 150 (1.50) | 3.0 a request | \
≤ 1.15 times, 10 % sampled: missed, 1.30; ≤ 1.6 times, all sampled: met, 1.50 |

Left out: workers2 (--workers: unknown flag)."""


def test_every_figure_stands_beside_its_ratio_and_its_limit() -> None:
    assert table.markdown(document()) == TABLE


def test_only_limits_that_were_measured_can_be_missed() -> None:
    assert list(limits.missed(View(document()))) == [
        "idle_mb: ≤ 75 MB: missed, 80.00",
        "traced small: ≤ 1.15 times, 10 % sampled: missed, 1.30",
    ]


def test_errors_are_told_by_job_and_proxy() -> None:
    measured = document()
    measured["figures"]["small"]["sidecar"]["errors"] = {"status 502": 2}

    assert list(table.complaints(measured)) == ["errors: small through sidecar: 2 x status 502"]


def test_other_work_on_the_machine_is_told() -> None:
    measured = document()
    measured["machine"] = {**MACHINE, "load_average_before": 1.5}

    assert list(table.complaints(measured)) == [
        "load average 1.5 on 2 cores before the run: other work disturbs every figure"
    ]
