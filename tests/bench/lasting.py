"""Whether memory stays flat: very many small requests through one fresh sidecar.

Rule: bounded in time, and the memory is looked at after each slice, so that a growth has a shape.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic

from tests.bench.commands import Command
from tests.bench.jobs import JOBS
from tests.bench.measure import run_of
from tests.bench.processes import rss_mb
from tests.bench.proxies import Bench

ANSWERS = 100_000
# What is made once is made by then.
WARM_ANSWERS = 10_000
_SLICE_S = 2.0
# At 300 answers a second, a tenth of what was seen, it would still end.
_BOUND_S = 330.0


@dataclass(slots=True)
class Lasting:
    """After each slice: answers so far, and the memory then."""

    answers: list[int] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)

    @property
    def growth_mb(self) -> float | None:
        """From WARM_ANSWERS to the end; None when the end was not reached."""
        if not self.answers or self.answers[-1] < ANSWERS:
            return None
        warm = next(place for place, answers in enumerate(self.answers) if answers >= WARM_ANSWERS)
        return self.rss_mb[-1] - self.rss_mb[warm]


def last(bench: Bench, name: str, command: Command) -> Lasting:
    """Ask until there are ANSWERS. Raises RuntimeError when an answer is wrong."""
    lasting, small, total = Lasting(), next(job for job in JOBS if job.name == "small"), 0
    began_s = monotonic()
    with bench.running(f"{name}-lasting", command) as proxy:
        while total < ANSWERS and monotonic() - began_s < _BOUND_S:
            outcome = bench.run(run_of(small, bench, proxy.port, _SLICE_S))
            if outcome.errors:
                raise RuntimeError(f"{name}: errors among {ANSWERS:,} requests: {dict(outcome.errors)}")
            total += outcome.answers
            lasting.answers.append(total)
            lasting.rss_mb.append(rss_mb(proxy.pid))
    return lasting
