"""The limits that the sidecar means to keep, and whether a run kept them.

Rule: ratios within one run, never microseconds; what was not measured is neither met nor missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.bench.commands import NAIVE, SIDECAR, TRACED_10, TRACED_ALL
from tests.bench.document import View, quotient

MET, MISSED, UNKNOWN = "met", "missed", "not measured"


@dataclass(frozen=True, slots=True)
class Limit:
    """row: of the tables, in which it stands. unit: of what is limited. dream: what would be better yet.

    at_least: the value must not be lower; otherwise it must not be higher.
    """

    row: str
    value: Callable[[View], float | None]
    limit: float
    unit: str
    dream: float | None = None
    at_least: bool = False

    def verdict(self, view: View) -> str:
        """One of MET, MISSED, UNKNOWN."""
        value = self.value(view)
        if value is None:
            return UNKNOWN
        return MET if (value >= self.limit if self.at_least else value <= self.limit) else MISSED

    def text(self, view: View) -> str:
        """E.g. `≤ 1.3 times the floor (dream 1.2): missed, 1.52`."""
        value = self.value(view)
        sign, dream = "≥" if self.at_least else "≤", f" (dream {self.dream:g})" if self.dream else ""
        found = "" if value is None else f", {value:.2f}"
        return f"{sign} {self.limit:g} {self.unit}{dream}: {self.verdict(view)}{found}"


def _to_floor(job: str) -> Callable[[View], float | None]:
    return lambda view: view.ratio(job, SIDECAR)


def _to_untraced(job: str, variant: str) -> Callable[[View], float | None]:
    return lambda view: view.ratio(job, variant, to=SIDECAR)


def _naive_to_sidecar(job: str) -> Callable[[View], float | None]:
    return lambda view: view.ratio(job, NAIVE, to=SIDECAR)


def _linear(view: View) -> float | None:
    """The cost of a KB at 1,600 KB, as a multiple of that at 400 KB."""
    ratio = quotient(view.cpu_us("pull1600", SIDECAR), view.cpu_us("pull400", SIDECAR))
    return None if ratio is None else ratio / 4


LIMITS = (
    Limit("event", _to_floor("event"), 1.3, "times the floor", dream=1.2),
    Limit("event", _naive_to_sidecar("event"), 10, "times less than naive", at_least=True),
    *(
        Limit(job, _to_floor(job), 1.3, "times the floor", dream=1.2)
        for job in ("event20ms", "event1000", "event1000x20ms")
    ),
    Limit("small", _to_floor("small"), 6, "times the floor", dream=4),
    Limit("small", _naive_to_sidecar("small"), 30, "times less than naive", at_least=True),
    Limit("pull400", _to_floor("pull400"), 1.2, "times the floor", dream=0.6),
    # Linear is 1; a tenth more is what the same run gives twice.
    Limit("pull1600", _linear, 1.1, "times the cost of a KB at 400 KB"),
    Limit("start", View.start_over_imports, 1.2, "times importing uvicorn + fastapi, + 0.3 s"),
    Limit("idle_mb", lambda view: view.proxy(SIDECAR, "idle_mb"), 75, "MB"),
    Limit("stream_kb", lambda view: view.standing("stream_kb", SIDECAR), 24, "KB"),
    # Less than 24 bytes a request: one forgotten object of each would be more.
    Limit("growth_mb", View.growth_mb, 2, "MB"),
    Limit("idle_percent", lambda view: view.standing("idle_percent", SIDECAR), 0.5, "%"),
    Limit("traced event", _to_untraced("event", TRACED_10), 1.15, "times, 10 % sampled"),
    Limit("traced small", _to_untraced("small", TRACED_10), 1.15, "times, 10 % sampled"),
    Limit("traced small", _to_untraced("small", TRACED_ALL), 1.6, "times, all sampled"),
)


def of_row(row: str, view: View) -> str:
    """What the limits say about a row, for its last cell."""
    return "; ".join(limit.text(view) for limit in LIMITS if limit.row == row)


def missed(view: View) -> Iterator[str]:
    """One line per missed limit."""
    for limit in LIMITS:
        if limit.verdict(view) == MISSED:
            yield f"{limit.row}: {limit.text(view)}"
