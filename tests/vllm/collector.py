"""An OTLP/HTTP collector in the test's own process: it keeps the spans that engines and sidecars export.

Rule: a thread of its own serves it, so that exporters never wait for a test.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.vllm.processes import eventually

# Exporters send five times a second here (OTEL_BSP_SCHEDULE_DELAY); busy cores make them late.
ARRIVAL_S = 15.0


@dataclass(frozen=True, slots=True)
class Span:
    """One exported span; ids are lower-case hex, `parent` is empty for a root."""

    service: str
    name: str
    kind: int
    trace: str
    span: str
    parent: str
    attributes: dict[str, Any]


class Collector:
    """What has been exported so far. url: the base of its OTLP endpoint."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._spans: list[Span] = []

    def keep(self, export: ExportTraceServiceRequest) -> None:
        """Take one export."""
        for resource_spans in export.resource_spans:
            service = _attributes(resource_spans.resource.attributes).get("service.name", "")
            for scope_spans in resource_spans.scope_spans:
                self._spans.extend(_span(service, span) for span in scope_spans.spans)

    def trace(self, trace: str) -> list[Span]:
        """The spans of one trace that have arrived."""
        return [span for span in list(self._spans) if span.trace == trace]

    def complete(self, trace: str, spans: int) -> list[Span]:
        """The spans of one trace once there are so many, or after ARRIVAL_S."""
        eventually(lambda: len(self.trace(trace)) >= spans, ARRIVAL_S)
        return self.trace(trace)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port of loopback for as long as the block lasts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint)
    collector = _Endpoint.collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, name="collector")
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Endpoint(BaseHTTPRequestHandler):
    collector: Collector
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Take an export, compressed or not."""
        content = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            content = gzip.decompress(content)
        self.collector.keep(ExportTraceServiceRequest.FromString(content))
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _span(service: str, span: Any) -> Span:
    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    return Span(service, span.name, span.kind, *ids, _attributes(span.attributes))


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in pairs}
