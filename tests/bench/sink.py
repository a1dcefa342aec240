"""A collector of spans for the benchmark: OTLP over gRPC, the sidecar's default protocol.

Rule: it counts and keeps nothing. Prints one JSON line with its port, answers each line of its standard input
with the number of spans so far, and ends when its input does.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


class Sink(TraceServiceServicer):
    """Counts the spans that come."""

    def __init__(self) -> None:
        self.spans = 0

    def Export(
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        """One batch."""
        self.spans += sum(
            len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans
        )
        return ExportTraceServiceResponse()


def main() -> None:
    """Serve until standard input ends."""
    sink = Sink()
    server = grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(sink, server)  # type: ignore[no-untyped-call]
    _tell({"port": server.add_insecure_port("127.0.0.1:0")})
    server.start()
    for _ in sys.stdin:
        _tell({"spans": sink.spans})
    server.stop(None).wait()


def _tell(said: dict[str, int]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
