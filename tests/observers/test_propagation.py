"""W3C trace context: which parents count, and what goes out instead of them."""

from __future__ import annotations

import logging

import pytest
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

from sidecar.observers.propagation import carry, parent, traceparent

TRACE = 0x0AF7651916CD43DD8448EB211C80319C
SPAN = 0xB7AD6B7169203331
GOOD = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def context(flags: int, state: TraceState | None = None) -> SpanContext:
    return SpanContext(TRACE, SPAN, is_remote=True, trace_flags=TraceFlags(flags), trace_state=state)


@pytest.mark.parametrize(
    ("value", "flags"),
    [
        (GOOD, 1),
        (b" \t" + GOOD + b" ", 1),
        (GOOD[:-2] + b"00", 0),
        (GOOD[:-2] + b"03", 3),
        (b"01" + GOOD[2:], 1),
        (b"cc" + GOOD[2:] + b"-what-comes-later", 1),
    ],
)
def test_a_valid_parent_counts(value: bytes, flags: int) -> None:
    assert parent([(b"x", b"y"), (b"TraceParent", value)]) == context(flags)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"nonsense",
        GOOD.upper(),
        b"00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01",
        b"00-0af7651916cd43dd8448eb211c80319c-" + b"0" * 16 + b"-01",
        b"ff" + GOOD[2:],
        GOOD + b"-more",
        GOOD + b"-",
        b"cc" + GOOD[2:] + b".more",
        GOOD[:-1],
        GOOD + b", " + GOOD,
        GOOD.replace(b"-", b"_"),
        GOOD[:-2] + b"\xd9\xa01",  # an Arabic-Indic zero
    ],
)
def test_an_invalid_parent_does_not(value: bytes) -> None:
    assert parent([(b"traceparent", value)]) is None


def test_two_parents_are_none_even_when_they_agree() -> None:
    assert parent([(b"traceparent", GOOD), (b"TRACEPARENT", GOOD)]) is None


def test_no_parent_is_none_whatever_the_state_says() -> None:
    assert parent([(b"tracestate", b"a=1")]) is None
    assert parent([]) is None


@pytest.mark.parametrize(
    ("lines", "pairs"),
    [
        ([b"a=1"], [("a", "1")]),
        ([b"a=1,b=2", b" c@d=x y , ,"], [("a", "1"), ("b", "2"), ("c@d", "x y")]),
        ([b"ot=th:fe;rv:00"], [("ot", "th:fe;rv:00")]),
        ([b""], []),
        ([b"a=1,a=2"], []),
        ([b"A=1"], []),
        ([b"a"], []),
        ([b"a=1,b=\xff"], []),
        ([b",".join(b"k%d=v" % number for number in range(33))], []),
    ],
)
def test_exported_spans_tell_a_tracestate_that_keeps_to_its_grammar(
    lines: list[bytes], pairs: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        found = parent([(b"traceparent", GOOD), *((b"TraceState", line) for line in lines)])
    assert found == context(1, TraceState(pairs))
    assert caplog.records == []


def test_a_traceparent_is_written_as_version_00_in_lower_case() -> None:
    assert traceparent(TRACE, 0xAB, 3) == b"00-0af7651916cd43dd8448eb211c80319c-00000000000000ab-03"


@pytest.mark.parametrize(("tracestate", "kept"), [(True, [(b"tracestate", b"a=1")]), (False, [])])
def test_exactly_one_traceparent_goes_out(*, tracestate: bool, kept: list[tuple[bytes, bytes]]) -> None:
    headers = [
        (b"Traceparent", b"1"),
        (b"a", b"1"),
        (b"traceparent", b"2"),
        (b"tracestate", b"a=1"),
        (b"baggage", b"k=v"),
    ]
    same = headers
    carry(headers, GOOD, tracestate=tracestate)
    assert same == [(b"a", b"1"), *kept, (b"baggage", b"k=v"), (b"traceparent", GOOD)]
