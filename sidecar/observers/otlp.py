"""Encodes spans for an OTLP collector, as the SDK's exporter does (exporter-otlp-proto-common 1.45).

Rule: pure. Spans that have what ours never have (events, links, lists) are left to the SDK, whose message
objects cost 150 µs for one of ours. Here it is 10: fields are written as bytes, attributes are remembered.
Field numbers: opentelemetry-proto 1.9, trace/v1/trace.proto, common/v1/common.proto.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest as Batch
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, Status, StatusCode

__all__ = ["Batch", "encoded"]

# A process serves few paths, engines and connectors; ids and durations come and go.
_REMEMBERED = 4096
_LONGEST_REMEMBERED = 128

_KINDS = {
    SpanKind.INTERNAL: 1,
    SpanKind.SERVER: 2,
    SpanKind.CLIENT: 3,
    SpanKind.PRODUCER: 4,
    SpanKind.CONSUMER: 5,
}
# SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK, and with it SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK.
_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x300
# Tags: the field's number and its wire type (protobuf.dev, "Encoding").
_TIMES = struct.Struct("<BQBQ")
_START, _END = 7 << 3 | 1, 8 << 3 | 1
_FLAGS = struct.Struct("<HI")
_FLAGS_TAG = 0x0185  # field 16, fixed32: two bytes of a varint
_UNSET = b"\x7a\x00"
_DOUBLE = struct.Struct("<Bd")


def encoded(spans: Sequence[ReadableSpan]) -> Batch:
    """What a collector is sent for these spans."""
    first = spans[0]
    try:
        content = b"".join([_field(2, _span(span, first)) for span in spans])
    except (_Unusual, UnicodeEncodeError):  # the SDK leaves out what it cannot encode, and says so
        return encode_spans(spans)
    # The SDK says what stands around the spans.
    around = encode_spans((first,))
    del around.resource_spans[0].scope_spans[0].spans[:]
    around.resource_spans[0].scope_spans[0].MergeFromString(content)
    return around


class _Unusual(Exception):
    """A span that is left to the SDK."""


def _span(span: ReadableSpan, like: ReadableSpan) -> bytes:
    """One `Span`, which has its resource and scope in common with another one."""
    context, parent = span.context, span.parent
    same = span.resource is like.resource and span.instrumentation_scope is like.instrumentation_scope
    if context is None or span.events or span.links or span.dropped_attributes or not same:
        raise _Unusual
    state = context.trace_state.to_header() if context.trace_state else ""
    return b"".join(
        (
            b"\x0a\x10",
            context.trace_id.to_bytes(16, "big"),
            b"\x12\x08",
            context.span_id.to_bytes(8, "big"),
            _field(3, state.encode()) if state else b"",
            b"\x22\x08" + parent.span_id.to_bytes(8, "big") if parent else b"",
            _field(5, span.name.encode()),
            bytes((6 << 3, _KINDS[span.kind])),
            _TIMES.pack(_START, span.start_time or 0, _END, span.end_time or 0),
            *[_attribute(key, value) for key, value in (span.attributes or {}).items()],
            _UNSET if span.status.status_code is StatusCode.UNSET else _status(span.status),
            _FLAGS.pack(_FLAGS_TAG, _IS_REMOTE if parent and parent.is_remote else _HAS_IS_REMOTE),
        )
    )


def _status(status: Status) -> bytes:
    text = b"" if status.description is None else _field(2, status.description.encode())
    return _field(15, text + bytes((3 << 3, status.status_code.value)))


def _attribute(key: str, value: Any) -> bytes:
    """One `KeyValue` of a span."""
    if isinstance(value, float):
        return _named(key, _DOUBLE.pack(4 << 3 | 1, value))
    if isinstance(value, str):
        text = str(value)
        return _text(key, text) if len(text) <= _LONGEST_REMEMBERED else _named(key, _field(1, text.encode()))
    if isinstance(value, bool):
        return _named(key, b"\x10\x01" if value else b"\x10\x00")
    if isinstance(value, int):
        return _number(key, value)
    raise _Unusual


@functools.lru_cache(_REMEMBERED)
def _text(key: str, value: str) -> bytes:
    return _named(key, _field(1, value.encode()))


@functools.lru_cache(_REMEMBERED)
def _number(key: str, value: int) -> bytes:
    return _named(key, b"\x18" + _varint(value & 0xFFFF_FFFF_FFFF_FFFF))


def _named(key: str, value: bytes) -> bytes:
    return _field(9, _key(key) + _field(2, value))


@functools.lru_cache(_REMEMBERED)
def _key(key: str) -> bytes:
    return _field(1, key.encode())


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes: tag, length, content."""
    size = len(content)
    if size < 0x80:
        return bytes((number << 3 | 2, size)) + content
    return bytes((number << 3 | 2,)) + _varint(size) + content


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)
