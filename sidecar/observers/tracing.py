"""Traces exchanges: a server span, inside it one span per leg, inside that one client span per attempt.

Rule: `spans` decides what a span tells, `propagation` what crosses the wire; here spans get their places.
The chunks of a decode share one span for all of their legs.
The provider is our own, never the global one: frameworks emit spans of their own once that is set.
A request that is not sampled costs one look at the sampler, and still carries its trace context on.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import nullcontext

from opentelemetry.context import Context
from opentelemetry.sdk.trace import Tracer, TracerProvider
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    format_trace_id,
    set_span_in_context,
)

from sidecar import __version__
from sidecar.observers import (
    Attempt,
    ExchangeRecord,
    LegRecord,
    Observer,
    PullRecord,
    Watch,
    genai,
    leg_spans,
    propagation,
    pull_spans,
    spans,
)
from sidecar.observers.dropped import Dropped, DroppedAttempt
from sidecar.observers.exporters import tracer_provider
from sidecar.observers.recorded import Place, Recording, Sharing, Spans, Told
from sidecar.observers.sampling import early

__all__ = ["Tracing", "tracer_provider"]

logger = logging.getLogger("sidecar.tracing")

# How long the last spans may take to leave at exit, in seconds: a pod that is told to stop has 30 s by
# default (Kubernetes terminationGracePeriodSeconds), and a collector that is away must not use them up.
SHUTDOWN_S = 5.0


_NOTHING: Watch = nullcontext()
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_RANDOM = TraceFlags(TraceFlags.SAMPLED | TraceFlags.RANDOM_TRACE_ID)


class Tracing(Observer):
    """`--tracing`. setting: what spans tell of this sidecar itself.

    With `OTEL_SDK_DISABLED` it watches nothing and leaves headers alone.
    """

    def __init__(self, provider: TracerProvider, setting: spans.Setting) -> None:
        self._provider = provider
        tracer = provider.get_tracer("sidecar", __version__)
        self._ids = provider.id_generator
        self._sampler = tracer.sampler if isinstance(tracer, Tracer) else None
        self._spans = Spans(tracer) if isinstance(tracer, Tracer) else None
        self._early = None if self._sampler is None else early(self._sampler)
        self._setting = setting
        # What is open now, by the identity of its record (records are mutable, so they have no hash).
        self._traces: dict[int, Recording | Dropped] = {}
        self._legs: dict[int, Recording] = {}
        self._chunked: dict[int, Recording] = {}
        self._attempts: dict[int, Recording] = {}

    def exchange(self, record: ExchangeRecord) -> Watch:
        """See Observer.exchange. Also tells the record its trace id."""
        if self._spans is None:
            return _NOTHING
        parent = propagation.parent(record.request_headers)
        trace_id = self._ids.generate_trace_id() if parent is None else parent.trace_id
        if self._drops(record, parent, trace_id):
            return Dropped(self._traces, record, trace_id, parent)
        record.trace_id = format_trace_id(trace_id)
        random = self._ids.is_trace_id_random() if parent is None else parent.trace_flags.random_trace_id
        flags = _RANDOM if random else _SAMPLED
        state = None if parent is None else parent.trace_state
        span_id = self._ids.generate_span_id()
        context = SpanContext(trace_id, span_id, is_remote=False, trace_flags=flags, trace_state=state)
        place = Place(spans.exchange_name(record), SpanKind.SERVER, context, parent)
        return Recording(self._spans, self._traces, record, place, self._told_of_exchange)

    def _drops(self, record: ExchangeRecord, parent: SpanContext | None, trace_id: int) -> bool:
        """Whether the sampler drops this trace. One answer holds for all of its spans.

        All samplers that OTEL_TRACES_SAMPLER can name look at the trace's id or the parent's flags only.
        """
        if self._early is not None:
            return self._early.drops(parent, trace_id)
        assert self._sampler is not None
        inside = Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())
        name, start = (
            spans.exchange_name(record),
            spans.exchange_start(record, self._setting.scheme, self._setting.own),
        )
        result = self._sampler.should_sample(inside, trace_id, name, SpanKind.SERVER, start)
        return not result.decision.is_sampled()  # type: ignore[no-untyped-call]

    def leg(self, record: LegRecord) -> Watch:
        """See Observer.leg. A passed-through request has no stages: its client span says it all."""
        trace = self._traces.get(id(record.exchange))
        if not isinstance(trace, Recording) or record.exchange.api is None:
            return _NOTHING
        if record.leg.chunk is not None:
            return Sharing(self._legs, record, self._chunked_decode(trace, record.exchange))
        assert self._spans is not None
        place = self._inside(trace, str(record.leg.role), SpanKind.INTERNAL)
        return _Leg(self._spans, self._legs, record, place, self._told_of_leg)

    def attempt(self, record: Attempt) -> Watch:
        """See Observer.attempt. Its traceparent names a span of its own, recorded or not."""
        trace = self._traces.get(id(record.leg.exchange))
        if trace is None:
            return _NOTHING
        if isinstance(trace, Dropped):
            return DroppedAttempt(trace, record, self._ids)
        assert self._spans is not None
        leg = self._legs.get(id(record.leg), trace)
        place = self._inside(leg, spans.attempt_name(record), SpanKind.CLIENT)
        attempt = _Attempt(self._spans, self._attempts, record, place, _told_of_attempt)
        attempt.continued = trace.place.parent is not None
        return attempt

    def pull(self, record: PullRecord) -> None:
        """See Observer.pull. Its span lies under its leg's, although both may have ended."""
        leg = record.context
        if self._spans is None or not isinstance(leg, SpanContext):
            return
        # Spans have the wall clock's times, records the monotonic clock's.
        zero_ns = time.time_ns() - time.monotonic_ns()
        text = pull_spans.failure(record)
        told = (
            pull_spans.attributes(record, guarded=self._setting.guarded),
            None if text is None else spans.Failure(None, text),
        )
        place = Place("pull", SpanKind.INTERNAL, self._child(leg), leg)
        end_s = record.first_byte_s or record.ended_s or time.monotonic()
        self._spans.over(place, told, zero_ns + int(record.started_s * 1e9), zero_ns + int(end_s * 1e9))

    def shutdown(self, timeout_s: float = SHUTDOWN_S) -> None:
        """Send what is left and stop; blocks for at most `timeout_s`, so call it when no loop runs."""
        worker = threading.Thread(target=self._provider.shutdown, name="tracing-shutdown", daemon=True)
        worker.start()
        worker.join(timeout_s)
        if worker.is_alive():
            logger.warning("the last spans could not be exported within %g s and are lost", timeout_s)

    def _told_of_exchange(self, record: ExchangeRecord, error: BaseException | None) -> Told:
        attributes = spans.exchange_start(record, self._setting.scheme, self._setting.own)
        attributes |= spans.exchange_end(record, self._setting.connector, self._setting.ec_connector)
        attributes |= genai.attributes(record, self._setting.connector)
        return attributes, spans.exchange_failure(record, error)

    def _told_of_leg(self, record: LegRecord, error: BaseException | None) -> Told:
        return leg_spans.leg_end(record, self._setting.connector), leg_spans.leg_failure(record, error)

    def _told_of_chunks(self, record: ExchangeRecord, error: BaseException | None) -> Told:
        return leg_spans.chunks_end(record, self._setting.connector), leg_spans.chunks_failure(record, error)

    def _chunked_decode(self, trace: Recording, record: ExchangeRecord) -> Recording:
        """The span of all chunks, which the first of them begins."""
        if trace.last is None:
            assert self._spans is not None
            place = self._inside(trace, "chunked_decode", SpanKind.INTERNAL)
            trace.last = Recording(self._spans, self._chunked, record, place, self._told_of_chunks)
            trace.last.__enter__()
        return trace.last

    def _inside(self, outer: Recording, name: str, kind: SpanKind) -> Place:
        return Place(name, kind, self._child(outer.place.context), outer.place.context)

    def _child(self, outer: SpanContext) -> SpanContext:
        """A new span's context in the same trace."""
        return SpanContext(
            outer.trace_id,
            self._ids.generate_span_id(),
            is_remote=False,
            trace_flags=outer.trace_flags,
            trace_state=outer.trace_state,
        )


class _Leg(Recording):
    """A leg's span, inside which its pull's lies."""

    def __enter__(self) -> None:
        super().__enter__()
        if self.record.pull is not None:  # known once the verifier has been entered, which is first
            self.record.pull.context = self.place.context


class _Attempt(Recording):
    """An attempt's span, whose id its request carries. continued: whether the trace came from the client."""

    continued: bool = False

    def __enter__(self) -> None:
        super().__enter__()
        context = self.place.context
        # Of a trace that starts here only "sampled" is told: with the random flag, Go's SDK throws the whole
        # traceparent away (opentelemetry-go propagation/trace_context.go: version 00, flags over 02). A flag
        # that came in goes on (W3C Trace Context level 2 section 3.2.2.5.2).
        flags = context.trace_flags if self.continued else context.trace_flags & TraceFlags.SAMPLED
        value = propagation.traceparent(context.trace_id, context.span_id, flags)
        propagation.carry(self.record.headers, value, tracestate=self.continued)


def _told_of_attempt(record: Attempt, error: BaseException | None) -> Told:
    return spans.attempt_start(record) | spans.attempt_end(record), spans.attempt_failure(record, error)
