"""The table of the sidecar's metrics: names, labels, buckets, and the cell where each number lives.

Rule: pure. Every series is known from the start, so that a number is a place in an array which all processes
share (`board`), and a series is there, at zero, before anything happens. Names, labels and buckets of the
first part are the peer's (contract section 10).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from sidecar.api import APIS
from sidecar.counters import Event

_PREFIX = "llm_d_disagg_sidecar_"

# Seconds, contract section 10: milliseconds for a cached prompt up to an hour for a long answer.
_BUCKETS_S = (
    *(0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45),
    *(60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600),
)

OTHER = "other"
"""The reason that stands for all that are not in the table: no text of a request becomes a label."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A count, or one for each of `values` of `label`. first: the cell of the first of them."""

    name: str
    help: str
    label: str | None = None
    values: tuple[str, ...] = ("",)
    first: int = 0

    @property
    def cells(self) -> int:
        """How many numbers it has."""
        return len(self.values)

    def cell(self, value: str = "") -> int:
        """Where the count for this label value is; ValueError when there is none."""
        return self.first + self.values.index(value)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations in seconds. Its cells: one count per bucket, not cumulative, one for longer ones, the sum."""

    name: str
    help: str
    buckets: tuple[float, ...] = _BUCKETS_S
    first: int = 0

    @property
    def cells(self) -> int:
        """How many numbers it has."""
        return len(self.buckets) + 2

    @property
    def sum_cell(self) -> int:
        """Where the sum of all durations is."""
        return self.first + len(self.buckets) + 1


Family = Counter | Histogram
_F = TypeVar("_F", Counter, Histogram)

FAMILIES: list[Family] = []
"""All metrics in the order in which they are shown; complete once this module is imported."""


def _placed(family: _F) -> _F:
    """The family with the cells that follow those of the families before it."""
    placed = replace(family, first=sum(before.cells for before in FAMILIES))
    FAMILIES.append(placed)
    return placed


def _counter(name: str, help: str, label: str | None = None, values: tuple[str, ...] = ("",)) -> Counter:
    return _placed(Counter(name, help, label, values))


def _stage_duration(stage: str) -> Histogram:
    return _placed(
        Histogram(f"{_PREFIX}{stage}_duration_seconds", f"Seconds that the {stage} stage of a request took.")
    )


REQUESTS = _counter(
    f"{_PREFIX}requests_total",
    "Requests on routed paths, by API.",
    "api_type",
    tuple(api.name for api in APIS),
)
DISAGG_REQUESTS = _counter(
    f"{_PREFIX}disagg_requests_total",
    "Requests that were split over engines, by the stages that ran apart.",
    "disagg_type",
    ("p/d", "e/p/d", "e/pd"),
)
DURATIONS = {stage: _stage_duration(stage) for stage in ("encode", "prefill", "decode")}
REQUEST_ERRORS = _counter(
    f"{_PREFIX}request_errors_total", "Stages that failed or were cut off.", "stage", tuple(DURATIONS)
)

# Ours (contract section 12).
HANDOFFS_LOST = _counter(
    f"{_PREFIX}prefill_handoffs_lost_total",
    "Requests decoded without the blocks that a prefiller computed for them, by reason.",
    "reason",
    ("prefill_without_kv_transfer_params", "prefill_with_incomplete_kv_transfer_params", OTHER),
)
PREFILL_FALLBACKS = _counter(
    f"{_PREFIX}prefill_fallbacks_total",
    "Requests that the decoder answered alone after their prefill failed.",
)
EVENTS = {
    event: _counter(event, text)
    for event, text in {
        Event.PULL_RESCUED: "Pulls that hung, whose requests were sent again without them.",
        Event.WORKER_RESTARTED: "Serving processes that ended by themselves and were started again.",
        Event.DNS_RERESOLVED: "Look-ups of names of MoRI-IO hosts that succeeded.",
        Event.DNS_IP_CHANGED: "Look-ups that gave another address than the one before.",
        Event.DNS_LOOKUP_FAILED: "Look-ups that failed; the last good address stays in use.",
    }.items()
}

CELLS = sum(family.cells for family in FAMILIES)
