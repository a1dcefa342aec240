"""Everything that a run measured as one JSON document, and how to look into it.

Rule: the table and the limits are made from the document alone, so that both can be made again from a file.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import timeit
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.commands import FLOOR, HANDOFF, SIDECAR
from tests.bench.jobs import Job, Unit
from tests.bench.lasting import WARM_ANSWERS, Lasting
from tests.bench.measure import Results
from tests.bench.processes import ROOT
from tests.bench.proxies import Proxy
from tests.bench.standing import STREAMS, Standing

_PACKAGES = ("fastapi", "httptools", "httpx", "msgspec", "uvicorn", "uvloop")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run of the benchmark has. after_mb: memory of each proxy at the end. left_out: and why."""

    machine: Mapping[str, Any]
    columns: Sequence[str]
    jobs: Sequence[Job]
    results: Results
    proxies: Mapping[str, Proxy]
    after_mb: Mapping[str, float]
    standing: Standing
    lasting: Lasting | None
    left_out: Mapping[str, str]

    def document(self) -> dict[str, Any]:
        """For machines."""
        lasting = self.lasting
        return {
            "machine": dict(self.machine),
            "columns": list(self.columns),
            "jobs": {
                job.name: {"title": job.title, "unit": job.unit.value, "handoff": job.handoff}
                for job in self.jobs
            },
            "figures": {
                job: {name: asdict(figures) for name, figures in row.items()}
                for job, row in self.results.figures.items()
            },
            "proxies": {
                name: {"ready_s": proxy.ready_s, "idle_mb": proxy.idle_mb, "after_mb": self.after_mb[name]}
                for name, proxy in self.proxies.items()
            },
            "standing": {"streams": STREAMS, **asdict(self.standing)},
            "lasting": lasting
            and {**asdict(lasting), "warm_answers": WARM_ANSWERS, "growth_mb": lasting.growth_mb},
            "left_out": dict(self.left_out),
            "errors": self.results.errors,
        }


@dataclass(frozen=True, slots=True)
class View:
    """Looks into a document; whatever was not measured is None."""

    document: Mapping[str, Any]

    def figure(self, job: str, name: str, kind: str) -> float | None:
        """The median over the rounds of a job's figure of one kind (cpu_us, first_p50_ms, …)."""
        values = self.document["figures"].get(job, {}).get(name, {}).get(kind)
        return median(values) if values else None

    def cpu_us(self, job: str, column: str) -> float | None:
        """A column's CPU time per unit of the job."""
        handoff = self.document["jobs"].get(job, {}).get("handoff")
        return self.figure(job, HANDOFF.get(column, column) if handoff else column, "cpu_us")

    def ratio(self, job: str, column: str, to: str = FLOOR) -> float | None:
        """CPU time per unit as a multiple of another column's in the same run."""
        return quotient(self.cpu_us(job, column), self.cpu_us(job, to))

    def added_ms(self, job: str, column: str, kind: str) -> float | None:
        """Time to the first byte less that of the engine asked directly."""
        through, direct = self.figure(job, column, kind), self.figure(job, "engine", kind)
        return None if through is None or direct is None else through - direct

    def spans(self, job: str, name: str) -> float | None:
        """How many spans came to the collector per unit of the job."""
        figures = self.document["figures"].get(job, {}).get(name)
        return quotient(figures["spans"], figures["answers"]) if figures else None

    def start_s(self, column: str) -> float | None:
        """From a fresh start to the first answer; the one start that there was, if that is all."""
        values = self.document["standing"]["start_s"].get(column)
        return median(values) if values else self.proxy(column, "ready_s")

    def start_over_imports(self) -> float | None:
        """The sidecar's start less 0.3 s, as a multiple of what the imports alone take."""
        imports, start_s = self.document["standing"]["import_s"], self.start_s(SIDECAR)
        return quotient(None if start_s is None else start_s - 0.3, median(imports) if imports else None)

    def standing(self, kind: str, column: str) -> float | None:
        """One of idle_percent and stream_kb."""
        value: float | None = self.document["standing"][kind].get(column)
        return value

    def proxy(self, name: str, kind: str) -> float | None:
        """One of ready_s, idle_mb and after_mb."""
        value: float | None = self.document["proxies"].get(name, {}).get(kind)
        return value

    def growth_mb(self) -> float | None:
        """Of the sidecar's memory, over very many requests."""
        value: float | None = (self.document["lasting"] or {}).get("growth_mb")
        return value


def quotient(value: float | None, by: float | None) -> float | None:
    """None where one of them is missing, or nothing can be said."""
    return value / by if value is not None and by else None


def is_first_byte(job: Mapping[str, Any]) -> bool:
    """Whether a document's job is about the time to the first byte."""
    return bool(job["unit"] == Unit.FIRST_BYTE.value)


# Builds of one version of Python differ by half: with the compiler's profile-guided optimisation, as in
# distributions and container images, or without, as version managers build it. It is nearly all of what a
# sidecar's request costs, and hardly anything of the floor's.
_CALLED = """\
class Field:
    def __init__(self, fields, name):
        self.fields, self.name = fields, name
    def value(self):
        return self.fields.get(self.name.lower())
fields = {b"host": b"engine"}
"""
_CALL = "Field(fields, b'Host').value()"
_CALLS = 200_000


def facts() -> dict[str, Any]:
    """What the figures are measured on; to be called before they are, for the load's sake."""
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": model[1] if model else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average_before": os.getloadavg()[0],
        "kernel": ".".join(platform.release().split(".")[:2]),
        "python": platform.python_version(),
        "call_ns": round(min(timeit.repeat(_CALL, _CALLED, number=_CALLS)) / _CALLS * 1e9),
        "packages": {name: version(name) for name in _PACKAGES},
        "commit": commit.stdout.strip() or "unknown",
    }
