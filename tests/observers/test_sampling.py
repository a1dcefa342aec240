"""What is known early of a trace is what the SDK's sampler says of it."""

from __future__ import annotations

import random

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    Decision,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
)
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from sidecar.observers.sampling import early


@pytest.mark.parametrize(
    "sampler", [DEFAULT_ON, DEFAULT_OFF, *map(ParentBasedTraceIdRatio, (0.0, 1e-07, 0.1, 0.5, 1.0))]
)
@pytest.mark.parametrize("flags", [None, 0, 1, 2, 3])
def test_early_answers_are_the_samplers_own(sampler: Sampler, flags: int | None) -> None:
    known = early(sampler)
    assert known is not None
    for _ in range(300):
        trace_id = random.getrandbits(128) | 1
        parent = None if flags is None else SpanContext(trace_id, 7, True, TraceFlags(flags))
        context = set_span_in_context(NonRecordingSpan(parent), Context()) if parent else Context()
        said = sampler.should_sample(context, trace_id, "name")
        assert known.drops(parent, trace_id) is (said.decision is Decision.DROP)


@pytest.mark.parametrize(
    "sampler", [ALWAYS_ON, ALWAYS_OFF, ParentBased(ALWAYS_ON, remote_parent_not_sampled=ALWAYS_ON)]
)
def test_nothing_is_known_of_other_samplers(sampler: Sampler) -> None:
    assert early(sampler) is None
