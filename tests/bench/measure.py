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
from time import monotonic, sleep

from tests.bench.commands import HANDOFF, NAIVE, PULLING, TRACING, VARIANTS
from tests.bench.jobs import Job, Unit
from tests.bench.load import Outcome, Run
from tests.bench.processes import cpu_s
from tests.bench.proxies import Bench, Proxy

# The engine asked directly: what a time to the first byte is compared with.
ENGINE = "engine"
# Long enough to run every path some hundred times, and to fill what is made once.
_WARM_UP_S = 0.2
# Batches of spans leave every half second (commands.py): longer than that, and not for ever.
_BATCH_S = 0.7
_EXPORTED_S = 10.0
# In that time a sidecar that exports nothing uses less.
_IDLE_S = 0.01


@dataclass(slots=True)
class Figures:
    """The figures of one job through one proxy, one of each kind per round.

    first_p50_ms, first_p99_ms: to the first byte of the body. cpu_us: per unit of the job. spans: exported.
    """

    cpu_us: list[float] = field(default_factory=list)
    first_p50_ms: list[float] = field(default_factory=list)
    first_p99_ms: list[float] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)
    answers: int = 0
    pulls: int = 0
    spans: int = 0
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Results:
    """All figures: by job, then by proxy."""

    figures: dict[str, dict[str, Figures]] = field(default_factory=dict)

    @property
    def errors(self) -> int:
        """Of all runs."""
        return sum(f.errors.total() for row in self.figures.values() for f in row.values())


def warm_up(bench: Bench, job: Job) -> None:
    """Let every proxy go through a job once, unmeasured."""
    for proxy in bench.proxies.values():
        bench.run(run_of(job, bench, proxy.port, _WARM_UP_S))


def measure(bench: Bench, jobs: Sequence[Job], rounds: int, seconds: float) -> Results:
    """Do every job through every proxy that can, `rounds` times for at least `seconds` each."""
    results = Results({job.name: {name: Figures() for name in targets(job, bench)} for job in jobs})
    for job in jobs:
        for number in range(rounds):
            for name, figures in results.figures[job.name].items():
                if number == 0 or not (job.heavy and name == NAIVE):
                    _once(bench, job, name, figures, job.seconds(seconds, 2 if rounds > 1 else 1))
    return results


def targets(job: Job, bench: Bench) -> list[str]:
    """What the job goes through."""
    if job.handoff:
        return [name for name in HANDOFF.values() if name in bench.proxies]
    hidden = {name for name in (*VARIANTS, *HANDOFF.values()) if name != NAIVE and name not in job.variants}
    names = [name for name in bench.proxies if name not in hidden]
    return [ENGINE, *names] if job.unit is Unit.FIRST_BYTE else names


def _once(bench: Bench, job: Job, name: str, figures: Figures, seconds: float) -> None:
    """One run."""
    proxy = bench.proxies.get(name)
    pulls, spans = bench.pulls(), bench.spans()
    before_s = cpu_s(proxy.pid) if proxy else 0.0
    outcome = bench.run(run_of(job, bench, proxy.port if proxy else bench.engine_port, seconds))
    if proxy and name in TRACING:
        _let_export(proxy)
    used_s = cpu_s(proxy.pid) - before_s if proxy else 0.0
    pulls = bench.pulls() - pulls
    figures.answers += outcome.answers
    figures.pulls += pulls
    figures.spans += bench.spans() - spans
    figures.errors.update(outcome.errors)
    if name in PULLING and pulls < outcome.answers:
        figures.errors["went on without its pull"] += outcome.answers - pulls
    if not outcome.answers:
        figures.errors["no answer"] += 1
        return
    units = outcome.events if job.unit is Unit.CPU_PER_EVENT else outcome.answers
    figures.cpu_us.append(used_s * 1e6 / units)
    figures.per_second.append(units / outcome.seconds)
    figures.first_p50_ms.append(_percentile(outcome, 50))
    figures.first_p99_ms.append(_percentile(outcome, 99))


def _let_export(proxy: Proxy) -> None:
    """Wait until what the run left to export has been: it is the run's cost."""
    deadline_s = monotonic() + _EXPORTED_S
    while monotonic() < deadline_s:
        before_s = cpu_s(proxy.pid)
        sleep(_BATCH_S)
        if cpu_s(proxy.pid) - before_s < _IDLE_S:
            return


def run_of(job: Job, bench: Bench, port: int, seconds: float) -> Run:
    """The run that asks a proxy, or the engine, for a job."""
    header = job.headers.format(source=bench.source(), prefiller=f"127.0.0.1:{bench.engine_port}")
    return Run(port, job.connections, seconds, job.prompt_bytes, job.events, job.gap_ms, (header,))


def _percentile(outcome: Outcome, percent: int) -> float:
    """By nearest rank."""
    ordered = sorted(outcome.first_ms)
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]
