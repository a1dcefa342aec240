"""Spans are encoded as the SDK's exporter encodes them."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from sidecar.observers.otlp import encoded

RESOURCE = Resource.create({"service.name": "pd-sidecar", "list": ["a", "b"]})
SCOPE = InstrumentationScope("sidecar", "1.2.3")
ATTRIBUTES = {
    "text": "décode",
    "long": "x" * 70_000,
    "yes": True,
    "no": False,
    "one": 1,
    "port": 8200,
    "negative": -5,
    "large": 2**62,
    "ms": 260.25,
    "zero": 0.0,
    "empty": "",
}


def context(span_id: int, *, remote: bool = False, state: TraceState | None = None) -> SpanContext:
    return SpanContext(0x0AF7651916CD43DD8448EB211C80319C, span_id, remote, TraceFlags(3), state)


def span(**fields: Any) -> ReadableSpan:
    usual: dict[str, Any] = {
        "context": context(7),
        "resource": RESOURCE,
        "attributes": ATTRIBUTES,
        "start_time": 1_764_000_000_000_000_000,
        "end_time": 1_764_000_000_123_456_789,
        "instrumentation_scope": SCOPE,
    }
    return ReadableSpan("decode", **(usual | fields))


@pytest.mark.parametrize(
    "spans",
    [
        [span()],
        [span(kind=kind, parent=context(5, remote=kind is SpanKind.SERVER)) for kind in SpanKind],
        [span(attributes={}), span(attributes={"one": True}), span(attributes={"one": 1.0})],
        [span(context=context(8, state=TraceState([("a", "1"), ("b", "2")])))],
        [span(status=Status(StatusCode.ERROR, "prefill request failed")), span(status=Status(StatusCode.OK))],
        [span(status=Status(StatusCode.ERROR))],
        [span(), span(events=[Event("e", {"k": "v"}, 5)])],
        [span(attributes={"list": ("a", "b")})],
        [span(), span(resource=Resource.create({"service.name": "other"}))],
    ],
)
def test_a_collector_gets_what_the_sdk_would_send(spans: list[ReadableSpan]) -> None:
    assert encoded(spans) == encode_spans(spans)
