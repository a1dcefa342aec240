"""What is measured: the table of jobs.

Rule: a job is one kind of request on a number of connections; a figure is one number taken from its runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tests.bench.commands import TRACING, WORKERS

# Sent with every request, to every proxy: the floor and other plain ones pass it on or drop it.
SOURCE_HEADER = "x-kv-cache-source-host-port: {source}"
PREFILL_HEADER = "x-prefiller-host-port: {prefiller}"

# From so many streams on the naive proxy is saturated and takes half a minute a run: one round is enough.
_MANY = 500


class Unit(Enum):
    """What a job's figures are: CPU time of the proxy's process tree, or the time to the first byte."""

    CPU_PER_EVENT = "µs per event"
    CPU_PER_REQUEST = "µs per request"
    FIRST_BYTE = "ms"


@dataclass(frozen=True, slots=True)
class Job:
    """One row of the table. events: of each stream, 0 for one JSON answer. prompt_bytes: of the request.

    handoff: through a prefiller, both legs. variants: sidecars of other settings that it goes through too.
    """

    name: str
    title: str
    unit: Unit
    connections: int
    prompt_bytes: int = 2_000
    events: int = 0
    gap_ms: int = 5
    handoff: bool = False
    quick: bool = False
    variants: tuple[str, ...] = ()

    @property
    def headers(self) -> str:
        """The template of the routing header: where the prompt is computed, or pulled from."""
        return PREFILL_HEADER if self.handoff else SOURCE_HEADER

    @property
    def heavy(self) -> bool:
        """Whether one round of the naive proxy is enough."""
        return self.connections >= _MANY

    def seconds(self, asked_s: float, streams: float) -> float:
        """How long connections ask again: at least for so many `streams` one after the other.

        They begin spread over the time that one takes, so that all are there at once only after that.
        """
        return max(asked_s, streams * self.events * self.gap_ms / 1000)


# Bodies grow from job to job, and hundreds of streams come last: what a process has allocated once changes
# what later allocations cost (NOTES.md, "glibc's allocator").
JOBS = (
    Job(
        "event",
        "SSE event, 128 streams, 5 ms apart",
        Unit.CPU_PER_EVENT,
        128,
        events=64,
        quick=True,
        variants=TRACING,
    ),
    Job("event20ms", "SSE event, 128 streams, 20 ms apart", Unit.CPU_PER_EVENT, 128, events=64, gap_ms=20),
    Job("ttft1", "time to first byte added, 1 stream", Unit.FIRST_BYTE, 1, events=2, quick=True),
    Job("ttft64", "time to first byte added, 64 streams", Unit.FIRST_BYTE, 64, events=16, gap_ms=20),
    Job(
        "small",
        "request, prompt of 2 KB",
        Unit.CPU_PER_REQUEST,
        16,
        quick=True,
        variants=(*TRACING, *WORKERS),
    ),
    Job("pull40", "pull, prompt of 40 KB", Unit.CPU_PER_REQUEST, 4, 40_000),
    Job("pull200", "pull, prompt of 200 KB", Unit.CPU_PER_REQUEST, 4, 200_000),
    Job("pull400", "pull, prompt of 400 KB", Unit.CPU_PER_REQUEST, 4, 400_000, quick=True, variants=WORKERS),
    Job("pd400", "prefill/decode, 400 KB, both legs", Unit.CPU_PER_REQUEST, 4, 400_000, handoff=True),
    Job("pull1600", "pull, prompt of 1,600 KB", Unit.CPU_PER_REQUEST, 4, 1_600_000),
    Job(
        "event1000",
        "SSE event, 1,000 streams, 5 ms apart",
        Unit.CPU_PER_EVENT,
        1000,
        events=64,
        variants=WORKERS,
    ),
    Job(
        "event1000x20ms",
        "SSE event, 1,000 streams, 20 ms apart",
        Unit.CPU_PER_EVENT,
        1000,
        events=64,
        gap_ms=20,
    ),
    Job("ttft512", "time to first byte added, 512 streams", Unit.FIRST_BYTE, 512, events=64, gap_ms=20),
)
