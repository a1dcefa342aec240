"""The results as a markdown table and as JSON.

Rule: every figure stands beside its ratio to the floor of the same run; JSON also has every round and what
the machine was.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.bench.jobs import Job, Unit
from tests.bench.measure import ENGINE, Figures, Results
from tests.bench.proxies import FLOOR, HANDOFF, SIDECAR, Proxy

_PACKAGES = ("fastapi", "httptools", "httpx", "msgspec", "uvicorn", "uvloop")


@dataclass(frozen=True, slots=True)
class Report:
    """What a run of the benchmark says. after_mb: memory of each proxy at the end."""

    jobs: Sequence[Job]
    results: Results
    proxies: Mapping[str, Proxy]
    after_mb: Mapping[str, float]

    def markdown(self) -> str:
        """One row per figure, one column per proxy; in brackets the ratio to the floor."""
        names = [name for name in self.proxies if name != HANDOFF]
        rows = [["", *names], [":---", *("---:" for _ in names)]]
        for job in self.jobs:
            rows += self._rows(job, names)
        rows.append(["start to first answer, s", *(f"{self.proxies[name].ready_s:.2f}" for name in names)])
        rows.append(["memory idle, MB", *(f"{self.proxies[name].idle_mb:.0f}" for name in names)])
        rows.append(["memory after the run, MB", *(f"{self.after_mb[name]:.0f}" for name in names)])
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)

    def complaints(self) -> Iterator[str]:
        """One line per job and proxy with errors."""
        for job, row in self.results.figures.items():
            for name, figures in row.items():
                if figures.errors:
                    words = ", ".join(f"{count} x {what}" for what, count in figures.errors.items())
                    yield f"errors: {job} through {name}: {words}"

    def document(self) -> dict[str, Any]:
        """Everything that was measured, for machines."""
        return {
            "machine": facts(),
            "jobs": {job.name: {"title": job.title, "unit": job.unit.value} for job in self.jobs},
            "figures": {job: _plain(row) for job, row in self.results.figures.items()},
            "ratios_to_floor": {job.name: self._ratios(job) for job in self.jobs},
            "proxies": {
                name: {"ready_s": proxy.ready_s, "idle_mb": proxy.idle_mb, "after_mb": self.after_mb[name]}
                for name, proxy in self.proxies.items()
            },
            "errors": self.results.errors,
        }

    def _rows(self, job: Job, names: Sequence[str]) -> list[list[str]]:
        results = self.results
        if job.unit is Unit.FIRST_BYTE:
            p50_ms, p99_ms = results.value(job, ENGINE), results.p99_ms(job, ENGINE)
            return [
                [f"{job.title}, p50, ms", *(_added(results.value(job, name), p50_ms) for name in names)],
                [f"{job.title}, p99, ms", *(_added(results.p99_ms(job, name), p99_ms) for name in names)],
            ]
        floor = results.value(job, FLOOR)
        through = {SIDECAR: HANDOFF} if job.handoff else {}
        cells = [_with_ratio(results.value(job, through.get(name, name)), floor) for name in names]
        return [[f"{job.title}, µs", *cells]]

    def _ratios(self, job: Job) -> dict[str, float]:
        """CPU time as a multiple of the floor's."""
        floor = None if job.unit is Unit.FIRST_BYTE else self.results.value(job, FLOOR)
        values = {name: self.results.value(job, name) for name in self.results.figures[job.name]}
        return {name: value / floor for name, value in values.items() if floor and value is not None}


def _plain(row: Mapping[str, Figures]) -> dict[str, Any]:
    return {name: asdict(figures) for name, figures in row.items()}


def _with_ratio(value: float | None, floor: float | None) -> str:
    if value is None:
        return ""
    text = f"{value:.1f}" if value < 100 else f"{value:,.0f}"
    return text if not floor or value == floor else f"{text} ({value / floor:.2f})"


def _added(value: float | None, engine: float | None) -> str:
    return "" if value is None or engine is None else f"{value - engine:.2f}"


def facts() -> dict[str, Any]:
    """What the figures were measured on."""
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": model[1] if model else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
    }
