"""Reads and writes W3C trace context on raw header lists.

Rule: pure. Exactly one `traceparent` goes out. What cannot be read is as if it were not there (W3C Trace
Context section 3.2.2: "restart the trace"); header values are never logged. `baggage` is never touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, MutableSequence

from opentelemetry.trace import SpanContext, TraceFlags, TraceState

from sidecar import headers as names
from sidecar import trace_context

RawHeaders = Iterable[tuple[bytes, bytes]]

_LENGTHS = (len(names.TRACEPARENT), len(names.TRACESTATE))

# W3C Trace Context (level 1) section 3.3.1.3: the grammar of one list member, and how many a list may have.
# The SDK's TraceState logs members that it cannot take, so none may reach it.
_KEY = r"[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13}"
_MEMBER = re.compile(rf"({_KEY})=([\x20-\x2b\x2d-\x3c\x3e-\x7e]{{0,255}}[\x21-\x2b\x2d-\x3c\x3e-\x7e])")
_MOST_MEMBERS = 32


def parent(headers: RawHeaders) -> SpanContext | None:
    """The span that the client's request belongs to; None when there is none, or several, or a bad one."""
    traceparents: list[bytes] = []
    tracestates: list[bytes] = []
    for key, value in headers:
        if len(key) not in _LENGTHS:  # most names, before their case is looked at
            continue
        name = key.lower()
        if name == names.TRACEPARENT:
            traceparents.append(value)
        elif name == names.TRACESTATE:
            tracestates.append(value)
    if len(traceparents) != 1:
        return None
    return _span_context(traceparents[0], tracestates)


def traceparent(trace_id: int, span_id: int, flags: int) -> bytes:
    """The header's value for one span, as version 00."""
    return b"00-%032x-%016x-%02x" % (trace_id, span_id, flags)


def carry(headers: MutableSequence[tuple[bytes, bytes]], value: bytes, *, tracestate: bool) -> None:
    """Make `value` the only traceparent among the headers.

    tracestate: whether the client's may go on; it may not when its traceparent did not count.
    """
    dropped = (names.TRACEPARENT,) if tracestate else (names.TRACEPARENT, names.TRACESTATE)
    headers[:] = [pair for pair in headers if len(pair[0]) not in _LENGTHS or pair[0].lower() not in dropped]
    headers.append((names.TRACEPARENT, value))


def _span_context(text: bytes, tracestates: list[bytes]) -> SpanContext | None:
    parsed = trace_context.parse(text)
    if parsed is None:
        return None
    trace_id, span_id, flags = parsed
    state = _trace_state(tracestates) if tracestates else None
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags), trace_state=state)


def _trace_state(lines: list[bytes]) -> TraceState | None:
    """What exported spans tell of the client's tracestate; a list that breaks the grammar tells nothing."""
    texts = [text for item in b",".join(lines).split(b",") if (text := item.decode("latin-1").strip(" \t"))]
    members = [(match[1], match[2]) for text in texts if (match := _MEMBER.fullmatch(text))]
    whole = len(dict(members)) == len(texts) <= _MOST_MEMBERS
    return TraceState(members) if whole else None
