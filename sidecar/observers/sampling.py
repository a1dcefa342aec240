"""Tells early which traces are dropped, where that follows from the trace's id or its parent alone.

Rule: pure. The answers are the SDK's own sampler's (opentelemetry/sdk/trace/sampling.py, 1.45), without the
attributes, contexts and results that it asks for; of samplers that look at more nothing is said early.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from opentelemetry.sdk.trace.sampling import Sampler, TraceIdRatioBased
from opentelemetry.trace import SpanContext

# How the samplers that OTEL_TRACES_SAMPLER=parentbased_* makes describe themselves.
_FOLLOWS_PARENT = re.compile(
    r"ParentBased\{root:(?:TraceIdRatioBased\{(?P<rate>[0-9.e-]+)\}|(?P<fixed>Always(?:On|Off)Sampler)),"
    r"remoteParentSampled:AlwaysOnSampler,remoteParentNotSampled:AlwaysOffSampler,"
    r"localParentSampled:AlwaysOnSampler,localParentNotSampled:AlwaysOffSampler\}"
)
_RATES = {"AlwaysOnSampler": 1.0, "AlwaysOffSampler": 0.0}


@dataclass(frozen=True, slots=True)
class Early:
    """What is known early. bound: trace ids whose low 64 bits are not under it are dropped."""

    bound: int

    def drops(self, parent: SpanContext | None, trace_id: int) -> bool:
        """Whether the sampler drops this trace; parent: the span that the client's request belongs to."""
        if parent is not None:
            return not parent.trace_flags.sampled
        return trace_id & TraceIdRatioBased.TRACE_ID_LIMIT >= self.bound


def early(sampler: Sampler) -> Early | None:
    """What this sampler's answers follow from; None when it looks at more than ids and parents."""
    match = _FOLLOWS_PARENT.fullmatch(sampler.get_description())
    if match is None:
        return None
    rate = _RATES[match["fixed"]] if match["fixed"] else float(match["rate"])
    return Early(TraceIdRatioBased.get_bound_for_rate(rate))
