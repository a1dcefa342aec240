"""The table of the sidecar's metrics: names, labels, buckets, and the cell where each number lives.

Rule: pure. A series is there, at zero, before anything happens. Names, labels and buckets of the first part
are the peer's (contract section 10); the others are ours, and help says what each figure holds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from sidecar.api import APIS
from sidecar.counters import Event
from sidecar.evidence import Outcome
from sidecar.giving import Says
from sidecar.observers.kinds import Counter, Family, Gauge, Histogram, Label
from sidecar.plan import Role
from sidecar.routing import NoPull

PREFIX = "llm_d_disagg_sidecar_"

# Seconds, contract section 10: milliseconds for a cached prompt up to an hour for a long answer.
_STAGE_BUCKETS_S = (
    *(0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45),
    *(60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600),
)
# Seconds: a pulled prefix answers in tens of milliseconds, a long prompt in a minute or so.
_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
# Seconds: from a small model's token to one that somebody who reads along has to wait for.
_INTERVAL_BUCKETS_S = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.4, 1, 2.5)
# Seconds: the relay needs a tenth of a millisecond, a probe of an unknown source up to 50.
_OVERHEAD_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
# Seconds: uvloop's timers count milliseconds; from a tenth of a second on, every stream stutters.
_LAG_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
# Bytes: from a question of one line to --max-request-bytes, by fours.
_BODY_BUCKETS_BYTES = (256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)

OTHER = "other"
"""The value that stands for all that are not in the table: no text of a request becomes a label."""

LOCAL = "nothing_local"
"""A pull that moved nothing since its engine had a prefix itself: the source is not to blame."""

_F = TypeVar("_F", Counter, Gauge, Histogram)

FAMILIES: list[Family] = []
"""All metrics in the order in which they are shown; complete once this module is imported."""


def _placed(family: _F) -> _F:
    """The family with the cells that follow those of the families before it."""
    placed = replace(family, first=sum(before.cells for before in FAMILIES))
    FAMILIES.append(placed)
    return placed


def _counter(name: str, help: str, **labels: tuple[str, ...]) -> Counter:
    return _placed(Counter(PREFIX + name, help, _labels(labels)))


def _gauge(name: str, help: str, **labels: tuple[str, ...]) -> Gauge:
    return _placed(Gauge(PREFIX + name, help, _labels(labels)))


def _histogram(name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
    return _placed(Histogram(PREFIX + name, help, buckets))


def _labels(labels: dict[str, tuple[str, ...]]) -> tuple[Label, ...]:
    return tuple(Label(name, values) for name, values in labels.items())


REQUESTS = _counter(
    "requests_total", "Requests on routed paths, by API.", api_type=tuple(api.name for api in APIS)
)
DISAGG_REQUESTS = _counter(
    "disagg_requests_total",
    "Requests that were split over engines, by the stages that ran apart.",
    disagg_type=("p/d", "e/p/d", "e/pd"),
)
DURATIONS = {
    stage: _histogram(
        f"{stage}_duration_seconds",
        f"Seconds that the {stage} stage of a request took.",
        _STAGE_BUCKETS_S,
    )
    for stage in ("encode", "prefill", "decode")
}
REQUEST_ERRORS = _counter(
    "request_errors_total", "Stages that failed or were cut off.", stage=tuple(DURATIONS)
)

# Ours (contract section 12). Pulls:
PULLS = _counter(
    "pulls_total",
    "Pulls that engines were told to make, by what became of them.",
    outcome=(*(outcome for outcome in Outcome if outcome is not Outcome.SKIPPED), LOCAL),
)
PULLS_SKIPPED = _counter(
    "pulls_skipped_total",
    "Requests whose source was named and not pulled from, by reason.",
    reason=tuple(NoPull),
)
PULLED_TOKENS = _counter(
    "pulled_tokens_total", "Prompt tokens that engines took from their sources, as far as it is certain."
)
PULLED_BYTES = _counter(
    "pulled_bytes_total", "Bytes that engines read from their sources over P2P, as far as it is certain."
)
SECONDS_AVOIDED = _counter(
    "prefill_avoided_seconds_estimate_total",
    "Estimate: seconds of prefill that the pulled tokens would have taken, at the engine's own average pace.",
)
SOURCE_SAYS = _counter(
    "pulls_seen_by_source_total",
    "Pulls by what their sources' own counters say of them, once they are asked.",
    says=tuple(Says),
)
GUARD_SOURCES = _gauge(
    "guard_sources", "Sources whose P2P port has lately accepted (good) or not (bad).", state=("good", "bad")
)
SILENT_SOURCES = _gauge(
    "silent_sources", "Sources of which so many pulls in a row have moved nothing that they are reported."
)
# Handing over:
HANDOFFS_LOST = _counter(
    "prefill_handoffs_lost_total",
    "Requests decoded without the blocks that a prefiller computed for them, by reason.",
    reason=("prefill_without_kv_transfer_params", "prefill_with_incomplete_kv_transfer_params", OTHER),
)
PREFILL_FALLBACKS = _counter(
    "prefill_fallbacks_total", "Requests that the decoder answered alone after their prefill failed."
)
# What clients and engines see:
LEGS = _counter(
    "legs_total",
    "Requests to engines, by role and status: a class; cut: died after its head; cancelled: by the sidecar, "
    "its client gone or its work without use; none: no answer; running: its exchange was over before it.",
    role=tuple(Role),
    status=("2xx", "3xx", "4xx", "5xx", OTHER, "cut", "cancelled", "none", "running"),
)
IN_FLIGHT = _gauge("requests_in_flight", "Requests on routed paths that are being answered.")
TTFT = _histogram(
    "time_to_first_token_seconds",
    "Seconds from a request's head to the first byte of its streamed answer.",
    _TTFT_BUCKETS_S,
)
WRITE_INTERVAL = _histogram(
    "stream_write_interval_mean_seconds",
    "Mean seconds between the writes of a streamed answer: one sample per answer, not per token.",
    _INTERVAL_BUCKETS_S,
)
OVERHEAD = _histogram(
    "overhead_seconds",
    "Seconds of a request in which no leg ran: reading its body, probing a source, the sidecar itself.",
    _OVERHEAD_BUCKETS_S,
)
REQUEST_BYTES = _histogram("request_body_bytes", "Bytes of requests' bodies as sent.", _BODY_BUCKETS_BYTES)
ANSWER_BYTES = _histogram("answer_body_bytes", "Bytes of answers' bodies as sent.", _BODY_BUCKETS_BYTES)
# The process:
CONNECTIONS = _gauge(
    "upstream_connections",
    "Connections to engines, carrying a request or waiting for one.",
    state=("busy", "idle"),
)
LOOP_LAG = _histogram(
    "event_loop_lag_seconds", "Seconds that a timer of four a second was late.", _LAG_BUCKETS_S
)
WORKERS = _gauge("workers", "Processes that serve.")
EVENTS = {
    event: _placed(Counter(event, text))
    for event, text in {
        Event.PULL_RESCUED: "Pulls that hung, whose requests were sent again without them.",
        Event.WORKER_RESTARTED: "Serving processes that ended by themselves and were started again.",
        Event.DNS_RERESOLVED: "Look-ups of names of MoRI-IO hosts that succeeded.",
        Event.DNS_IP_CHANGED: "Look-ups that gave another address than the one before.",
        Event.DNS_LOOKUP_FAILED: "Look-ups that failed; the last good address stays in use.",
    }.items()
}

CELLS = sum(family.cells for family in FAMILIES)
