"""Says what the spans of an exchange and an attempt tell (names, attributes, failures); `leg_spans` the rest.

Rule: pure, from records alone. Attribute names and the spans they stand on are the peer's (llm-d-router
pkg/sidecar/proxy/dispatch.go and connector_*.go, pkg/common/observability/semconv/llm_d.go, October 2026) and
those of OpenTelemetry's HTTP conventions 1.37. Never a query, a body, or a header value but the request id.
Durations are milliseconds with three decimals (the peer truncates them to whole ones).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from opentelemetry.util.types import AttributeValue

from sidecar.api import APIS
from sidecar.endpoint import Endpoint
from sidecar.errors import LegRefused
from sidecar.observers.records import Attempt, ExchangeRecord
from sidecar.routing import NoPull, Route

Attributes = dict[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class Setting:
    """What spans tell of this sidecar itself.

    connector and ec_connector: `--kv-connector`, `--ec-connector`. scheme and own: how it is reached, own
    when known. guarded: `--source-guard`.
    """

    connector: str
    ec_connector: str | None = None
    scheme: str = "http"
    own: Endpoint | None = None
    guarded: bool = False


# OpenTelemetry HTTP conventions, http.request.method: any other is "_OTHER", and "HTTP" in a span's name.
_METHODS = frozenset(("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"))

# What engines serve under fixed names besides the routed APIs (vLLM documentation, "Online Serving").
_ENGINE_PATHS = frozenset(api.path.decode() for api in APIS) | {
    *("/classify", "/detokenize", "/health", "/load", "/metrics", "/ping", "/pooling", "/rerank", "/score"),
    *("/tokenize", "/version", "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/embeddings"),
    *("/v1/load_lora_adapter", "/v1/messages/count_tokens", "/v1/models", "/v1/rerank", "/v1/score"),
    *("/v1/unload_lora_adapter", "/v2/rerank"),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a span's status is ERROR. kind: its `error.type`, a short label or an HTTP status, if it has one.
    text: the status's description.
    """

    kind: str | None
    text: str | None


def exchange_name(record: ExchangeRecord) -> str:
    """`<METHOD> <path>` for paths of a fixed name, else `forward_request`.

    The peer calls the span of every incoming request `<METHOD> <path>`, and on routed paths puts a second
    server span, `forward_request`, inside it; one span carries what both tell here. A path with an id in it
    has the second name, since span names must be few (OpenTelemetry HTTP conventions, "Name").
    """
    path = record.api.path.decode() if record.api else record.path
    if path not in _ENGINE_PATHS:
        return "forward_request"
    return f"{record.method if record.method in _METHODS else 'HTTP'} {path}"


def exchange_start(record: ExchangeRecord, scheme: str, own: Endpoint | None) -> Attributes:
    """What is known when the request's head is: samplers see these. own: this pod's address, when known."""
    attributes: Attributes = {"url.scheme": scheme, "url.path": record.path, **_method(record.method)}
    if own is not None:
        attributes["server.address"] = own.host
        attributes["server.port"] = own.port
    return attributes


def exchange_end(record: ExchangeRecord, connector: str, ec_connector: str | None) -> Attributes:
    """What is known when the answer has ended. The connectors are the flags' values."""
    attributes: Attributes = {}
    if record.status is not None:
        attributes["http.response.status_code"] = record.status
    if record.request_id:
        attributes["llm_d.pd_proxy.request_id"] = record.request_id
    if record.error is not None:
        attributes["llm_d.pd_proxy.error"] = record.error
    if record.denied_target is not None:
        attributes["llm_d.pd_proxy.denied_target"] = record.denied_target
    if record.api is not None:
        attributes["llm_d.openai.api"] = record.api.name
        attributes["llm_d.pd_proxy.connector"] = connector
        attributes["llm_d.pd_proxy.kv_connector"] = connector
        if ec_connector is not None:
            attributes["llm_d.pd_proxy.ec_connector"] = ec_connector
        attributes["llm_d.pd_proxy.request_path"] = record.path
        attributes |= _planned(record)
    return attributes


def _planned(record: ExchangeRecord) -> Attributes:
    """How the route was followed."""
    attributes = {} if record.route is None else _routing(record.route) | _encoders(record.route)
    if record.held:
        attributes["llm_d.pd_proxy.parallel_dispatch"] = True
    if record.alone is not None:
        attributes["llm_d.pd_proxy.disaggregation_used"] = False
    if (reason := record.handoff_lost or record.alone) is not None:
        attributes["llm_d.pd_proxy.reason"] = reason
    return attributes


def exchange_failure(record: ExchangeRecord, error: BaseException | None) -> Failure | None:
    """5xx, a cut answer, or none at all; a 4xx is the client's (HTTP conventions, "Status")."""
    label, status = record.error, record.status
    if isinstance(error, asyncio.CancelledError):
        label = label or "client_gone"
        return Failure(label, _words(label))
    if status is not None and status >= 400:
        return Failure(label or str(status), None) if status >= 500 else None
    if label is None and error is not None:
        label = type(error).__name__
    return None if label is None else Failure(label, _words(label))


def attempt_name(record: Attempt) -> str:
    """As the peer's HTTP client names its spans (otelhttp, `HTTP <METHOD>`)."""
    method = record.leg.leg.method.decode("latin-1")
    return f"HTTP {method}" if method in _METHODS else "HTTP"


def attempt_start(record: Attempt) -> Attributes:
    """What is known before the request leaves."""
    leg = record.leg.leg
    attributes: Attributes = {
        "server.address": leg.target.host,
        "server.port": leg.target.port,
        "url.path": leg.path.partition(b"?")[0].decode("latin-1"),
        **_method(leg.method.decode("latin-1")),
    }
    if record.leg.attempts > 1:
        attributes["http.request.resend_count"] = record.leg.attempts - 1
    return attributes


def attempt_end(record: Attempt) -> Attributes:
    """What is known when the answer has ended."""
    return {} if record.status is None else {"http.response.status_code": record.status}


def attempt_failure(record: Attempt, error: BaseException | None) -> Failure | None:
    """No whole answer, or 4xx and 5xx (HTTP conventions, "Status", for clients)."""
    if isinstance(error, asyncio.CancelledError):
        return Failure("cancelled", "cancelled")
    label = record.error or (type(error).__name__ if error is not None else None)
    if label is not None and label != LegRefused.label:  # a whole answer, whose status says it
        return Failure(label, _words(label))
    if record.status is not None and record.status >= 400:
        return Failure(str(record.status), None)
    return None


def _method(method: str) -> Attributes:
    if method in _METHODS:
        return {"http.request.method": method}
    return {"http.request.method": "_OTHER", "http.request.method_original": method}


def _routing(route: Route) -> Attributes:
    attributes: Attributes = {"llm_d.pd_proxy.disaggregation_used": route.prefiller is not None}
    if route.prefiller is not None:
        attributes["llm_d.pd_proxy.prefill_target"] = route.prefiller.endpoint.netloc
        attributes["llm_d.pd_proxy.prefill_candidates"] = route.prefill_candidates
    if route.no_pull is not None:
        attributes["llm_d.pd_proxy.reason"] = str(route.no_pull)
    elif route.prefiller is None:
        attributes["llm_d.pd_proxy.reason"] = "no_prefill_header"
    # The peer names a source that could be pulled from, also when it turns out to be this engine itself.
    if route.named_source is not None and route.no_pull is not NoPull.NO_P2P:
        attributes["llm_d.pd_proxy.kv_cache_source"] = route.named_source.netloc
    return attributes


def _encoders(route: Route) -> Attributes:
    """What the peer tells of a request that names encoders."""
    if not route.encoder_candidates:
        return {}
    return {
        "llm_d.ec_proxy.encode_disaggregation_used": bool(route.encoders),
        "llm_d.ec_proxy.encoder_count": len(route.encoders),
        "llm_d.ec_proxy.encoder_candidates": route.encoder_candidates,
    }


def _words(label: str) -> str:
    return label.replace("_", " ")
