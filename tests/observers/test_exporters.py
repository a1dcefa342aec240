"""Where spans go: real collectors on loopback, absent ones, and settings that cannot be used."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.sdk.trace import TracerProvider

from sidecar.observers.exporters import TracingSettingError, tracer_provider
from sidecar.observers.spans import Setting
from sidecar.observers.tracing import Tracing
from sidecar.plan import Role
from sidecar.routing import Route
from tests.observers.play import DECODER, Answer, Stage, chat, leg

MISSING = (
    "--tracing: the OTLP exporter is not installed: pip install 'sidecar[otlp]', "
    "or set OTEL_TRACES_EXPORTER=none"
)


@pytest.fixture(autouse=True)
def _only_these_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    library = logging.getLogger("opentelemetry")
    before = (library.propagate, list(library.handlers))
    yield
    library.propagate, library.handlers[:] = before


def play(tracing: Tracing) -> None:
    """One decode-only exchange: three spans."""
    record = chat(Route(DECODER))
    with tracing.exchange(record):
        Answer(200, 100.1).to(Stage(tracing, None), leg(record, Role.DECODE, 100.0))  # type: ignore[arg-type]


def told(request: ExportTraceServiceRequest) -> tuple[dict[str, str], list[str]]:
    """The resource's attributes and the names of the spans of one export."""
    [resource] = request.resource_spans
    attributes = {item.key: item.value.string_value for item in resource.resource.attributes}
    return attributes, sorted(span.name for scope in resource.scope_spans for span in scope.spans)


@contextmanager
def http_collector() -> Iterator[tuple[str, list[tuple[str, ExportTraceServiceRequest]]]]:
    received: list[tuple[str, ExportTraceServiceRequest]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.path, ExportTraceServiceRequest.FromString(content)))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()
        thread.join()


class GrpcCollector(TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.received: list[ExportTraceServiceRequest] = []

    def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
        self.received.append(request)
        return ExportTraceServiceResponse()


def closed_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port


def test_spans_arrive_over_http_as_protobuf_with_the_service_they_come_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with http_collector() as (url, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        tracing = Tracing(tracer_provider(os.environ, "1.2.3"), Setting("nixlv2"))
        play(tracing)
        tracing.shutdown()
    [(path, request)] = received
    attributes, names = told(request)
    assert path == "/v1/traces"
    assert names == ["HTTP POST", "POST /v1/chat/completions", "decode"]
    assert attributes["service.name"] == "pd-sidecar"
    assert attributes["service.version"] == "1.2.3"
    [scope] = request.resource_spans[0].scope_spans
    assert scope.scope.name == "sidecar"


def test_spans_arrive_over_grpc_which_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = GrpcCollector()
    server = grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    tracing = Tracing(tracer_provider(os.environ, "1.2.3"), Setting("nixlv2"))
    play(tracing)
    tracing.shutdown()
    server.stop(None).wait()
    [request] = collector.received
    attributes, names = told(request)
    assert names == ["HTTP POST", "POST /v1/chat/completions", "decode"]
    assert attributes["service.name"] == "mine"


def test_a_service_named_among_the_resource_attributes_keeps_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=p,service.name=theirs")
    provider = tracer_provider({**os.environ, "OTEL_TRACES_EXPORTER": "none"}, "1.2.3")
    assert provider.resource.attributes["service.name"] == "theirs"
    assert provider.resource.attributes["k8s.pod.name"] == "p"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_an_unreachable_collector_is_one_warning_and_costs_requests_nothing(
    protocol: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.4")
    provider = tracer_provider({**os.environ, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}, "1.2.3")
    tracing = Tracing(provider, Setting("nixlv2"))
    started_s = monotonic()
    for _ in range(200):
        play(tracing)
    assert monotonic() - started_s < 1.0
    for _ in range(2):
        provider.force_flush()
        play(tracing)
    tracing.shutdown()
    ours = [(entry.name, entry.levelname, entry.exc_info) for entry in caplog.records]
    assert ours == [("sidecar.tracing", "WARNING", None)]
    assert "\n" not in caplog.records[0].getMessage()


SECRETS = ("pass-word", "key-in-query", "key-in-header", "key in header")


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_the_collectors_credentials_are_in_no_complaint(
    protocol: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"http://user:pass-word@127.0.0.1:{closed_port()}/v1/traces?tenant=me&api_key=key-in-query"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url)
    monkeypatch.setenv(
        "OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20key-in-header,x=key%20in%20header"
    )
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.4")
    provider = tracer_provider({**os.environ, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}, "1.2.3")
    play(Tracing(provider, Setting("nixlv2")))
    provider.force_flush()
    logging.getLogger("opentelemetry.other").warning("sent %s to %s", "Bearer key-in-header", url)
    provider.shutdown()
    told = [entry.getMessage() for entry in caplog.records]
    assert f"tracing: sent *** to {url.replace('user:pass-word', '***').partition('?')[0]}?***" in told
    assert [secret for secret in SECRETS if any(secret in text for text in told)] == []


@pytest.mark.parametrize(
    "headers",
    [
        "authorization: Bearer key-in-header",
        "Bearer key-in-header",
        "api-key=abcd,key-in-header",
        "=key-in-header",
    ],
)
def test_headers_that_are_no_list_of_pairs_are_in_no_complaint_either(
    headers: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", headers)
    tracer_provider({**os.environ, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "1.2.3").shutdown()
    told = [entry.getMessage() for entry in caplog.records]
    assert any("eader" in text for text in told)
    assert [text for text in told if "key-in-header" in text] == []


def test_complaints_of_the_library_lose_their_tracebacks(caplog: pytest.LogCaptureFixture) -> None:
    tracer_provider({"OTEL_TRACES_EXPORTER": "none"}, "1.2.3")
    noisy = logging.getLogger("opentelemetry.some.exporter")
    for _ in range(3):
        try:
            raise OSError("no route")
        except OSError:
            noisy.exception("Exception while\nexporting %s.", "Span")
    logging.getLogger("opentelemetry.other").warning("Queue full")
    logging.getLogger("opentelemetry.other").info("nobody cares")
    assert [entry.getMessage() for entry in caplog.records] == [
        "tracing: Exception while exporting Span. (OSError)",
        "tracing: Queue full",
    ]


def test_complaints_about_variables_lose_them_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "abc")
    tracer_provider({"OTEL_TRACES_EXPORTER": "console"}, "1.2.3").shutdown()
    assert [entry.getMessage() for entry in caplog.records] == [
        "tracing: Unable to parse value for OTEL_BSP_SCHEDULE_DELAY as integer. "
        "Defaulting to 5000. (ValueError)"
    ]
    assert caplog.records[0].exc_info is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"OTEL_TRACES_EXPORTER": "zipkin"},
            "OTEL_TRACES_EXPORTER: 'zipkin' is not one of otlp, console, none",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "otlp,jaeger"},
            "OTEL_TRACES_EXPORTER: 'jaeger' is not one of otlp, console, none",
        ),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_PROTOCOL: 'http/json' is not one of grpc, http/protobuf",
        ),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "udp"},
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: 'udp' is not one of grpc, http/protobuf",
        ),
        ({"OTEL_SERVICE_NAME": "pod\udcff"}, "OTEL_SERVICE_NAME: is not UTF-8"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "key=s3cret\udcff"}, "OTEL_EXPORTER_OTLP_HEADERS: is not UTF-8"),
    ],
)
def test_settings_that_cannot_be_used_name_their_variable(environ: dict[str, str], message: str) -> None:
    with pytest.raises(TracingSettingError) as raised:
        tracer_provider(environ, "1.2.3")
    assert str(raised.value) == message


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize(
    "file", ["CERTIFICATE", "TRACES_CERTIFICATE", "CLIENT_CERTIFICATE", "TRACES_CLIENT_KEY"]
)
def test_a_file_that_could_be_waited_on_for_ever_is_not_opened(
    file: str, protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    variable = f"OTEL_EXPORTER_OTLP_{file}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv(variable, str(tmp_path / "pipe"))
    with pytest.raises(TracingSettingError) as raised:
        tracer_provider(os.environ, "1.2.3")
    assert str(raised.value) == f"{variable}: '{tmp_path / 'pipe'}' is not a regular file"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (
            "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
            "many",
            "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be a non-negative integer but got many",
        ),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "could not convert string to float: 'soon'"),
    ],
)
def test_what_the_sdk_cannot_read_is_one_line_too(
    name: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(TracingSettingError) as raised:
        tracer_provider(os.environ, "1.2.3")
    assert str(raised.value) == f"--tracing: an OTEL_* variable cannot be used: {reason}"


@pytest.mark.parametrize(
    ("protocol", "module"),
    [
        ("grpc", "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"),
        ("http/protobuf", "opentelemetry.exporter.otlp.proto.http.trace_exporter"),
    ],
)
def test_a_missing_exporter_says_how_to_get_it_or_do_without(
    protocol: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TracingSettingError) as raised:
        tracer_provider({"OTEL_EXPORTER_OTLP_PROTOCOL": protocol}, "1.2.3")
    assert str(raised.value) == MISSING


@pytest.mark.parametrize("environ", [{"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": " True "}])
def test_nothing_is_imported_when_nothing_is_exported(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("grpc", "http"):
        monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.{name}.trace_exporter", None)
    provider = tracer_provider(environ, "1.2.3")
    assert isinstance(provider, TracerProvider)
    play(Tracing(provider, Setting("nixlv2")))


def test_the_console_exporter_writes_to_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    tracing = Tracing(tracer_provider({"OTEL_TRACES_EXPORTER": "console"}, "1.2.3"), Setting("nixlv2"))
    play(tracing)
    tracing.shutdown()
    assert '"name": "POST /v1/chat/completions"' in capfd.readouterr().out
