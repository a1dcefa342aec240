"""Draws the spans of one trace as a small tree, from what OpenTelemetry's console exporter printed.

Rule: shows spans and attributes as they were exported, in the order in which they began.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import IO, Any

Span = dict[str, Any]

# What a newcomer wants to see of each kind of span, and the word for it.
_SHOWN = {
    "SpanKind.SERVER": {
        "llm_d.pd_proxy.prefill_target": "prefiller",
        "llm_d.pd_proxy.kv_cache_source": "source",
        "http.response.status_code": "status",
    },
    "SpanKind.INTERNAL": {},
    "SpanKind.CLIENT": {"server.address": "to", "server.port": "port", "http.response.status_code": "status"},
}


def read(output: IO[bytes], trace_id: str) -> list[Span]:
    """The spans of one trace that have been printed so far."""
    output.seek(0)
    text = output.read().decode(errors="replace")
    decoder = json.JSONDecoder()
    spans: list[Span] = []
    at = text.find("{")
    while at >= 0:
        try:
            span, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:  # the exporter is still writing it
            break
        spans.append(span)
        at = text.find("{", at)
    return [span for span in spans if span["context"]["trace_id"] == f"0x{trace_id}"]


def tree(spans: list[Span]) -> list[str]:
    """The lines of the drawing."""
    known = {span["context"]["span_id"] for span in spans}
    roots = [span for span in spans if span["parent_id"] not in known]
    return [line for root in _in_order(roots) for line in _lines(root, spans, "", "")]


def _lines(span: Span, spans: list[Span], first: str, rest: str) -> Iterator[str]:
    shown = _attributes(span)
    yield f"{first}{span['name']:<{34 - len(first)}}{_ms(span):9.1f} ms  {shown}".rstrip()
    children = _in_order([child for child in spans if child["parent_id"] == span["context"]["span_id"]])
    for number, child in enumerate(children):
        last = number == len(children) - 1
        yield from _lines(child, spans, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))


def _attributes(span: Span) -> str:
    attributes = span["attributes"]
    shown = _SHOWN[span["kind"]].items()
    pairs = [f"{word}={attributes[name]}" for name, word in shown if name in attributes]
    return " ".join(pairs)


def _in_order(spans: list[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: str(span["start_time"]))


def _ms(span: Span) -> float:
    start, end = (datetime.fromisoformat(span[key]) for key in ("start_time", "end_time"))
    return (end - start).total_seconds() * 1000
