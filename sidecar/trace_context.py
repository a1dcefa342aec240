"""Reads the value of a `traceparent` header.

Rule: pure, and of the standard library alone: a sidecar without tracing reads it too.
"""

from __future__ import annotations

import re

# W3C Trace Context (level 2) section 3.2.2: lower-case hex only; versions after 00 may append fields.
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_FIRST_VERSION = b"00"
_FORBIDDEN_VERSION = b"ff"


def parse(value: bytes) -> tuple[int, int, int] | None:
    """The trace's id, the span's and the flags; None when it is to be as if it were not there."""
    match = _TRACEPARENT.fullmatch(value.strip(b" \t"))
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == _FORBIDDEN_VERSION or (version == _FIRST_VERSION and more is not None):
        return None
    trace, span = int(trace_id, 16), int(span_id, 16)
    # Zeros only are no id (sections 3.2.2.3 and 3.2.2.4).
    return (trace, span, int(flags, 16)) if trace and span else None
