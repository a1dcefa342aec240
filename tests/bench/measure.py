"""Runs the jobs, round after round, and keeps every figure.

Rule: a round of a job visits all proxies one after the other, so that what disturbs the machine disturbs all
of them; every figure is kept, and the median is what counts. A job's rounds are over before the next job
begins, because what a process has allocated once changes what its later allocations cost (NOTES.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.bench.jobs import Job, Unit
from tests.bench.load import Outcome, Run
from tests.bench.processes import cpu_s
from tests.bench.proxies import HANDOFF, SIDECAR, Bench, Proxy

# The engine asked directly: what a time to the first byte is compared with.
ENGINE = "engine"
# Long enough to run every path some hundred times, and to fill what is made once.
_WARM_UP_S = 0.2


@dataclass(slots=True)
class Figures:
    """The figures of one job through one proxy, one of each kind per round.

    first_p50_ms, first_p99_ms: to the first byte of the body. cpu_us: per unit of the job.
    """

    cpu_us: list[float] = field(default_factory=list)
    first_p50_ms: list[float] = field(default_factory=list)
    first_p99_ms: list[float] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)
    answers: int = 0
    pulls: int = 0
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Results:
    """All figures: by job, then by proxy."""

    figures: dict[str, dict[str, Figures]] = field(default_factory=dict)

    @property
    def errors(self) -> int:
        """Of all runs."""
        return sum(f.errors.total() for row in self.figures.values() for f in row.values())

    def value(self, job: Job, proxy: str) -> float | None:
        """The median of the job's main figure; None when it was not measured."""
        figures = self.figures.get(job.name, {}).get(proxy)
        if figures is None or not figures.answers:
            return None
        return median(figures.first_p50_ms if job.unit is Unit.FIRST_BYTE else figures.cpu_us)

    def p99_ms(self, job: Job, proxy: str) -> float | None:
        """The median of the 99th percentiles of the time to the first byte."""
        figures = self.figures.get(job.name, {}).get(proxy)
        return median(figures.first_p99_ms) if figures and figures.answers else None


def warm_up(bench: Bench, job: Job) -> None:
    """Let every proxy that can do the job go through it once, unmeasured."""
    for name in targets(job, bench):
        if name != ENGINE:
            bench.run(_run_of(job, bench, bench.proxies[name].port, _WARM_UP_S))


def measure(bench: Bench, jobs: Sequence[Job], rounds: int, seconds: float) -> Results:
    """Do every job through every proxy that can, `rounds` times for `seconds` each."""
    results = Results({job.name: {name: Figures() for name in targets(job, bench)} for job in jobs})
    for job in jobs:
        for _ in range(rounds):
            for name, figures in results.figures[job.name].items():
                _once(bench, job, bench.proxies.get(name), figures, seconds)
    return results


def targets(job: Job, bench: Bench) -> list[str]:
    """What the job goes through."""
    if job.handoff:
        return [name for name in bench.proxies if name == HANDOFF]
    names = [name for name in bench.proxies if name != HANDOFF]
    return [ENGINE, *names] if job.unit is Unit.FIRST_BYTE else names


def _once(bench: Bench, job: Job, proxy: Proxy | None, figures: Figures, seconds: float) -> None:
    """One run; proxy None is the engine itself."""
    pulls = bench.pulls()
    before_s = cpu_s(proxy.pid) if proxy else 0.0
    outcome = bench.run(_run_of(job, bench, proxy.port if proxy else bench.engine_port, seconds))
    used_s = cpu_s(proxy.pid) - before_s if proxy else 0.0
    pulls = bench.pulls() - pulls
    figures.answers += outcome.answers
    figures.pulls += pulls
    figures.errors.update(outcome.errors)
    if proxy and proxy.name == SIDECAR and pulls < outcome.answers:
        figures.errors["went on without its pull"] += outcome.answers - pulls
    if not outcome.answers:
        figures.errors["no answer"] += 1
        return
    units = outcome.events if job.unit is Unit.CPU_PER_EVENT else outcome.answers
    figures.cpu_us.append(used_s * 1e6 / units)
    figures.per_second.append(units / outcome.seconds)
    figures.first_p50_ms.append(_percentile(outcome, 50))
    figures.first_p99_ms.append(_percentile(outcome, 99))


def _run_of(job: Job, bench: Bench, port: int, seconds: float) -> Run:
    header = job.headers.format(source=bench.source(), prefiller=f"127.0.0.1:{bench.engine_port}")
    return Run(port, job.connections, seconds, job.prompt_bytes, job.events, job.gap_ms, (header,))


def _percentile(outcome: Outcome, percent: int) -> float:
    """By nearest rank."""
    ordered = sorted(outcome.first_ms)
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]
