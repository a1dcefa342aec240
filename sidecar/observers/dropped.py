"""Watches exchanges whose traces are not recorded: most of them, under a ratio sampler.

Rule: their ids cross the wire as if they were recorded, and nothing else is made.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import SpanContext, TraceFlags, format_trace_id

from sidecar.observers import Attempt, ExchangeRecord, propagation


class Dropped:
    """The exchange of a trace that is not recorded: its ids go on, and nothing else is made."""

    __slots__ = ("_open", "_record", "continued", "flags", "trace_id")

    def __init__(
        self, opened: dict[int, Any], record: ExchangeRecord, trace_id: int, parent: SpanContext | None
    ) -> None:
        self._open, self._record = opened, record
        self.trace_id = trace_id
        self.continued = parent is not None
        # Not sampled; a random flag that came in goes on, as in the SDK.
        self.flags = parent.trace_flags & TraceFlags.RANDOM_TRACE_ID if parent else 0

    def __enter__(self) -> None:
        """The exchange begins."""
        self._record.trace_id = format_trace_id(self.trace_id)
        self._open[id(self._record)] = self

    def __exit__(self, *_: object) -> None:
        """The exchange has ended."""
        del self._open[id(self._record)]


class DroppedAttempt:
    """One request of such an exchange, with a span id of its own."""

    __slots__ = ("_ids", "_record", "_trace")

    def __init__(self, trace: Dropped, record: Attempt, ids: IdGenerator) -> None:
        self._trace, self._record, self._ids = trace, record, ids

    def __enter__(self) -> None:
        """The request is about to be sent."""
        trace = self._trace
        value = propagation.traceparent(trace.trace_id, self._ids.generate_span_id(), trace.flags)
        propagation.carry(self._record.headers, value, tracestate=trace.continued)

    def __exit__(self, *_: object) -> None:
        """The answer has ended."""
