"""Traces exchanges: a server span, inside it one span per leg, inside that one client span per attempt.

Rule: `spans` decides what a span tells, `propagation` what crosses the wire; here spans begin and end.
The provider is our own, never the global one: frameworks emit spans of their own once that is set.
A request that is not sampled costs one look at the sampler, and still carries its trace context on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.sdk.trace import Tracer, TracerProvider
from opentelemetry.trace import (
    NonRecordingSpan,
    NoOpTracer,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    format_trace_id,
    set_span_in_context,
)

from sidecar import __version__
from sidecar.endpoint import Endpoint
from sidecar.observers import (
    Attempt,
    ExchangeRecord,
    LegRecord,
    Observer,
    PullRecord,
    Watch,
    leg_spans,
    propagation,
    pull_spans,
    spans,
)
from sidecar.observers.dropped import Dropped, DroppedAttempt
from sidecar.observers.exporters import tracer_provider
from sidecar.observers.sampling import ChosenIds, early

__all__ = ["Tracing", "tracer_provider"]

logger = logging.getLogger("sidecar.tracing")

# How long the last spans may take to leave at exit, in seconds: a pod that is told to stop has 30 s by
# default (Kubernetes terminationGracePeriodSeconds), and a collector that is away must not use them up.
SHUTDOWN_S = 5.0


_Told = tuple[spans.Attributes, spans.Failure | None]


@dataclass(frozen=True, slots=True)
class _Trace:
    """The open span of one exchange. continued: whether it has a parent, so that its tracestate goes on."""

    span: Span
    inside: Context
    continued: bool


_NOTHING: Watch = nullcontext()


class Tracing(Observer):
    """`--tracing`. connector and ec_connector: `--kv-connector`, `--ec-connector`. scheme and own: how this
    sidecar is reached, own when known.

    With `OTEL_SDK_DISABLED` it watches nothing and leaves headers alone.
    """

    def __init__(
        self,
        provider: TracerProvider,
        connector: str,
        *,
        ec_connector: str | None = None,
        scheme: str = "http",
        own: Endpoint | None = None,
    ) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("sidecar", __version__)
        self._disabled = isinstance(self._tracer, NoOpTracer)
        self._ids = ChosenIds(provider.id_generator)
        self._early = None
        if isinstance(self._tracer, Tracer):
            self._tracer.id_generator = self._ids
            self._early = early(self._tracer.sampler)
        self._connector = connector
        self._ec_connector = ec_connector
        self._scheme = scheme
        self._own = own
        # What is open now, by the identity of its record (records are mutable, so they have no hash).
        self._traces: dict[int, _Trace | Dropped] = {}
        self._legs: dict[int, Context] = {}

    def exchange(self, record: ExchangeRecord) -> Watch:
        """See Observer.exchange. Also tells the record its trace id."""
        if self._disabled:
            return _NOTHING
        parent = propagation.parent(record.request_headers)
        if self._early is not None:
            trace_id = self._ids.generate_trace_id() if parent is None else parent.trace_id
            if self._early.drops(parent, trace_id):
                return Dropped(self._traces, record, trace_id, parent)
            self._ids.chosen = trace_id if parent is None else None
        return self._recorded(record, parent)

    @contextmanager
    def _recorded(self, record: ExchangeRecord, parent: SpanContext | None) -> Iterator[None]:
        span = self._tracer.start_span(
            spans.exchange_name(record),
            _inside(NonRecordingSpan(parent)) if parent else Context(),
            SpanKind.SERVER,
            spans.exchange_start(record, self._scheme, self._own),
        )
        record.trace_id = format_trace_id(span.get_span_context().trace_id)
        self._traces[id(record)] = _Trace(span, _inside(span), parent is not None)
        try:
            with _ending(span, lambda error: self._told_of_exchange(record, error)):
                yield
        finally:
            del self._traces[id(record)]

    def leg(self, record: LegRecord) -> Watch:
        """See Observer.leg. A passed-through request has no stages: its client span says it all."""
        trace = self._traces.get(id(record.exchange))
        if not isinstance(trace, _Trace) or record.exchange.api is None or not trace.span.is_recording():
            return _NOTHING
        return self._recorded_leg(record, trace)

    @contextmanager
    def _recorded_leg(self, record: LegRecord, trace: _Trace) -> Iterator[None]:
        span = self._tracer.start_span(str(record.leg.role), trace.inside, SpanKind.INTERNAL)
        self._legs[id(record)] = _inside(span)
        if record.pull is not None:
            record.pull.context = self._legs[id(record)]
        try:
            with _ending(span, lambda error: self._told_of_leg(record, error)):
                yield
        finally:
            del self._legs[id(record)]

    def attempt(self, record: Attempt) -> Watch:
        """See Observer.attempt. Its traceparent names a span of its own, recorded or not."""
        trace = self._traces.get(id(record.leg.exchange))
        if trace is None:
            return _NOTHING
        if isinstance(trace, Dropped):
            return DroppedAttempt(trace, record, self._ids)
        return self._recorded_attempt(record, trace)

    @contextmanager
    def _recorded_attempt(self, record: Attempt, trace: _Trace) -> Iterator[None]:
        if not trace.span.is_recording():
            span_id = self._provider.id_generator.generate_span_id()
            self._carry(record, trace, trace.span.get_span_context(), span_id)
            yield
            return
        span = self._tracer.start_span(
            spans.attempt_name(record),
            self._legs.get(id(record.leg), trace.inside),
            SpanKind.CLIENT,
            spans.attempt_start(record),
        )
        context = span.get_span_context()
        self._carry(record, trace, context, context.span_id)
        with _ending(span, lambda error: (spans.attempt_end(record), spans.attempt_failure(record, error))):
            yield

    def pull(self, record: PullRecord) -> None:
        """See Observer.pull. Its span lies under its leg's, although both may have ended."""
        if not isinstance(record.context, Context):
            return
        # Spans have the wall clock's times, records the monotonic clock's.
        zero_ns = time.time_ns() - time.monotonic_ns()
        span = self._tracer.start_span(
            "pull",
            record.context,
            SpanKind.INTERNAL,
            pull_spans.attributes(record),
            start_time=zero_ns + int(record.started_s * 1e9),
        )
        if failure := pull_spans.failure(record):
            span.set_status(StatusCode.ERROR, failure)
        span.end(zero_ns + int((record.first_byte_s or record.ended_s or time.monotonic()) * 1e9))

    def shutdown(self, timeout_s: float = SHUTDOWN_S) -> None:
        """Send what is left and stop; blocks for at most `timeout_s`, so call it when no loop runs."""
        worker = threading.Thread(target=self._provider.shutdown, name="tracing-shutdown", daemon=True)
        worker.start()
        worker.join(timeout_s)
        if worker.is_alive():
            logger.warning("the last spans could not be exported within %g s and are lost", timeout_s)

    def _told_of_exchange(self, record: ExchangeRecord, error: BaseException | None) -> _Told:
        return spans.exchange_end(record, self._connector, self._ec_connector), spans.exchange_failure(
            record, error
        )

    def _told_of_leg(self, record: LegRecord, error: BaseException | None) -> _Told:
        return leg_spans.leg_end(record, self._connector), leg_spans.leg_failure(record, error)

    def _carry(self, record: Attempt, trace: _Trace, context: SpanContext, span_id: int) -> None:
        # Of a trace that starts here only "sampled" is told: with the random flag, Go's SDK throws the whole
        # traceparent away (opentelemetry-go propagation/trace_context.go: version 00, flags over 02). A flag
        # that came in goes on (W3C Trace Context level 2 section 3.2.2.5.2).
        flags = context.trace_flags if trace.continued else context.trace_flags & TraceFlags.SAMPLED
        value = propagation.traceparent(context.trace_id, span_id, flags)
        propagation.carry(record.headers, value, tracestate=trace.continued)


def _inside(span: Span) -> Context:
    """The context of that span's children: nothing else of the caller's context matters to us."""
    return set_span_in_context(span, Context())


@contextmanager
def _ending(span: Span, told: Callable[[BaseException | None], _Told]) -> Iterator[None]:
    """End the span with what there is to tell of it, given the exception that passed through, if one did.

    The status is set here: the SDK's own context managers leave a cancelled span unset.
    """
    try:
        yield
    except BaseException as error:
        _end(span, told, error)
        raise
    _end(span, told, None)


def _end(span: Span, told: Callable[[BaseException | None], _Told], error: BaseException | None) -> None:
    if span.is_recording():
        attributes, failure = told(error)
        if failure is not None:
            attributes["error.type"] = failure.kind
            span.set_status(StatusCode.ERROR, failure.text)
        span.set_attributes(attributes)
    span.end()
