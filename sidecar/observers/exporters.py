"""Sets up where spans go, from the standard OTEL_* variables.

Rule: exporters are optional packages, imported only when one is chosen. Whatever an exporter has to complain
about becomes one warning per source and a few minutes: requests never wait for it, logs never fill with it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from urllib.parse import unquote

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

from sidecar.files import is_special
from sidecar.masking import masked

logger = logging.getLogger("sidecar.tracing")

# The peer's (llm-d-router cmd/pd-sidecar/main.go, InitTracing), so that dashboards keep finding it.
SERVICE = "pd-sidecar"

# The peer exports over gRPC (pkg/common/observability/tracing/telemetry.go, otlptracegrpc); so do we.
_PROTOCOL = "grpc"

# Variables of the exporters begin so (OpenTelemetry specification, protocol/exporter).
_OTLP = ("OTEL_EXPORTER_OTLP", "OTEL_EXPORTER_OTLP_TRACES")
_LEAST_CHARACTERS = 4
# Those of them that name files.
_FILES = tuple(
    f"{begin}_{file}" for file in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY") for begin in _OTLP
)

# Seconds between two warnings from one source: an exporter that cannot reach its collector speaks several
# times per batch, and a batch leaves every 5 s (OTEL_BSP_SCHEDULE_DELAY).
_QUIET_S = 300.0


class TracingSettingError(ValueError):
    """Tracing cannot start as it is set; the message is one line for the operator and names the variable."""


def tracer_provider(environ: Mapping[str, str], version: str) -> TracerProvider:
    """A provider of our own that exports as `OTEL_TRACES_EXPORTER` says: otlp (default), console or none.

    environ: the process environment; samplers, limits, batches and collectors are read from it by the SDK and
    the exporters themselves. Raises TracingSettingError.
    """
    _readable(environ)
    secrets = _secrets(environ)
    _quiet(logging.getLogger("opentelemetry"), secrets)  # first: it complains of variables while it is made
    try:
        provider = TracerProvider(resource=_resource(environ, version), shutdown_on_exit=False)
        if not _is_true(environ, "OTEL_SDK_DISABLED"):
            for exporter in _exporters(environ):
                provider.add_span_processor(BatchSpanProcessor(exporter))
    except TracingSettingError:
        raise
    except Exception as error:  # the SDK and its exporters refuse values with exceptions of several kinds
        reason = _told(str(error) or type(error).__name__, secrets)
        raise TracingSettingError(f"--tracing: an OTEL_* variable cannot be used: {reason}") from None
    return provider


def _readable(environ: Mapping[str, str]) -> None:
    """Raises TracingSettingError for what is not UTF-8, which would end every export; it may be a secret."""
    for name, value in environ.items():
        if name.startswith("OTEL_") and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise TracingSettingError(f"{name}: is not UTF-8")


def _resource(environ: Mapping[str, str], version: str) -> Resource:
    attributes = {SERVICE_VERSION: version}
    if not environ.get("OTEL_SERVICE_NAME") and f"{SERVICE_NAME}=" not in environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    ):
        attributes[SERVICE_NAME] = SERVICE
    return Resource.create(attributes)


def _exporters(environ: Mapping[str, str]) -> list[SpanExporter]:
    """One exporter per name: the variable is a list (OpenTelemetry specification, environment variables)."""
    chosen = [name.strip() for name in (environ.get("OTEL_TRACES_EXPORTER") or "otlp").split(",")]
    unknown = [name for name in chosen if name not in ("otlp", "console", "none")]
    if unknown:
        raise TracingSettingError(f"OTEL_TRACES_EXPORTER: {unknown[0]!r} is not one of otlp, console, none")
    makers: dict[str, Callable[[], SpanExporter]] = {
        "otlp": lambda: _otlp(environ),
        # Its own default is what standard output was when the SDK was imported.
        "console": lambda: ConsoleSpanExporter(out=sys.stdout),
    }
    return [makers[name]() for name in chosen if name in makers]


def _otlp(environ: Mapping[str, str]) -> SpanExporter:
    variable = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
    if not environ.get(variable):
        variable = "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = environ.get(variable) or _PROTOCOL
    makers = {"grpc": _otlp_grpc, "http/protobuf": _otlp_http}
    if protocol not in makers:
        raise TracingSettingError(f"{variable}: {protocol!r} is not one of {', '.join(makers)}")
    for variable in _FILES:
        if (file := environ.get(variable, "")) and is_special(Path(file)):
            raise TracingSettingError(f"{variable}: {file!r} is not a regular file")
    try:
        return makers[protocol]()
    except ImportError:
        raise TracingSettingError(
            "--tracing: the OTLP exporter is not installed: pip install 'sidecar[otlp]', "
            "or set OTEL_TRACES_EXPORTER=none"
        ) from None


def _otlp_grpc() -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    from sidecar.observers.otlp import Batch, encoded

    class Exporter(OTLPSpanExporter):
        """The SDK's, with an encoder of our own: its own takes most of what tracing costs."""

        def _translate_data(self, data: Sequence[ReadableSpan]) -> Batch:
            return encoded(data)

    return Exporter()


def _otlp_http() -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _is_true(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").strip().lower() == "true"


class _Seldom(logging.Handler):
    """Turns a library's complaints into one line of ours per source and `_QUIET_S`, without a traceback."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        super().__init__(logging.WARNING)
        self._secrets = secrets
        self._last_s: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler.emit; called under the handler's lock."""
        now_s = monotonic()
        last_s = self._last_s.get(record.name)
        if last_s is not None and now_s - last_s < _QUIET_S:
            return
        self._last_s[record.name] = now_s
        text = " ".join(_told(record.getMessage(), self._secrets).split())
        if record.exc_info and record.exc_info[0]:
            text = f"{text} ({record.exc_info[0].__name__})"
        logger.warning("tracing: %s", text)


def _quiet(library: logging.Logger, secrets: Sequence[bytes]) -> None:
    """Let only `_Seldom` hear that logger and those below it."""
    library.propagate = False
    library.handlers[:] = [_Seldom(secrets)]


def _secrets(environ: Mapping[str, str]) -> tuple[bytes, ...]:
    """What of the collectors' URLs and headers may be a credential, the longest first."""
    found: set[str] = set()
    for name in _OTLP:
        found |= _credentials(environ.get(f"{name}_ENDPOINT", ""))
        headers = environ.get(f"{name}_HEADERS", "")
        # The exporter repeats what is no list of pairs, whole or a part of it.
        found |= {headers, *headers.split(",")} | _values(headers, ",")
    found |= {unquote(one) for one in found}
    # Shorter ones are no secrets, and stand in other words.
    kept = {one for one in found if len(one) >= _LEAST_CHARACTERS}
    return tuple(sorted((one.encode() for one in kept), key=len, reverse=True))


def _credentials(url: str) -> set[str]:
    """User and password, and what the query says."""
    authority, _, query = url.partition("?")
    user = authority.partition("//")[2].rpartition("@")[0] or authority.rpartition("@")[0]
    return {user, user.partition(":")[2], query} | _values(query, "&")


def _values(pairs: str, separator: str) -> set[str]:
    """Of `name=value` pairs."""
    return {pair.partition("=")[2].strip() for pair in pairs.split(separator)}


def _told(text: str, secrets: Sequence[bytes]) -> str:
    return masked(text.encode(errors="backslashreplace"), secrets).decode()
