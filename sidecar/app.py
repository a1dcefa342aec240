"""The composition root: builds every part of one serving process once.

Rule: reads like a table of contents; no request passes through a branch that is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response

from sidecar.connectors import CONNECTORS, Connector
from sidecar.counters import UNCOUNTED, Counters
from sidecar.endpoint import Endpoint
from sidecar.exchange import Exchange, Services
from sidecar.guard import GuardTimes, SourceGuard
from sidecar.intake import Limits
from sidecar.kvparams import Policy
from sidecar.metrics_port import MetricsPort
from sidecar.observers import Observers
from sidecar.plan import Role
from sidecar.routing import Rules
from sidecar.server.run import Server, server
from sidecar.server.tls import reload_on_change, serving_context
from sidecar.settings import Settings
from sidecar.transport import Resolver, Transport
from sidecar.upstream import Retries, Stage, Upstream
from sidecar.websocket import Tunnels

# vLLM's server closes idle connections after 5 s (uvicorn's default): ours go before.
_ENGINE_IDLE_S = 4.0
# How often a certificate that Kubernetes may have renewed is looked at.
_CERT_POLL_S = 10.0

Scope = MutableMapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shared:
    """What all processes of one sidecar have in common. tls: of the serving ports, None for plain HTTP."""

    tls: ssl.SSLContext | None
    metrics: MetricsPort | None = None


def server_of(
    settings: Settings,
    observers: Observers,
    shared: Shared | None = None,
    *,
    rank: int = 0,
    counters: Counters = UNCOUNTED,
) -> Server:
    """The whole sidecar of one rank as a server that is given its listening sockets."""
    shared = shared or Shared(serving_tls(settings))
    services = build(settings, observers, rank=rank, counters=counters)
    front = Front(services, own_endpoints(services, settings, shared))
    return server(front, shared.tls, settings.shutdown_grace_s)


def build(
    settings: Settings, observers: Observers, *, rank: int = 0, counters: Counters = UNCOUNTED
) -> Services:
    """The parts that every exchange uses."""
    connector = CONNECTORS[settings.kv_connector]
    resolver = Resolver()
    return Services(
        rules=_rules(settings, connector, rank),
        connector=connector,
        limits=Limits(settings.max_request_bytes, Policy(settings.client_kv_transfer_params)),
        upstream=Upstream(
            {
                Role.PREFILL: _stage(settings, "prefiller", resolver),
                Role.DECODE: _stage(settings, "decoder", resolver),
            },
            observers,
            Retries(settings.prefill_max_retries, settings.prefill_retry_backoff_s),
        ),
        observers=observers,
        tunnels=Tunnels(observers, _engine_tls(settings, "decoder"), settings.connect_timeout_s),
        guard=SourceGuard(_guard_times(settings), resolver) if settings.source_guard == "on" else None,
        choose=random.randrange,
        counters=counters,
    )


class Front:
    """The ASGI application: the data path, in front of our own endpoints."""

    def __init__(self, services: Services, own: FastAPI) -> None:
        self._services = services
        self._own = own

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Our own endpoints and the lifespan go to FastAPI; every other request is an exchange."""
        if scope["type"] != "http" or (scope["path"] == "/health" and scope["method"] == "GET"):
            await self._own(scope, receive, send)
        else:
            await Exchange(self._services, scope["extensions"]["sidecar.client"]).run()


def own_endpoints(services: Services, settings: Settings, shared: Shared) -> FastAPI:
    """The endpoints that the sidecar answers itself, and what runs beside the exchanges."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as background, contextlib.AsyncExitStack() as stack:
            if services.guard:
                await stack.enter_async_context(services.guard)
            stack.push_async_callback(services.upstream.aclose)
            for context, directory in _certificates(settings, shared):
                poll = background.create_task(reload_on_change(context, directory, _CERT_POLL_S))
                stack.callback(poll.cancel)
            if shared.metrics:
                await stack.enter_async_context(shared.metrics.serving())
            yield

    # FastAPI makes spans of its own when a tracer provider is set; ours are the only ones (section 10).
    silent: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
    app = FastAPI(lifespan=lifespan, openapi_url=None, telemetry=silent)

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200)

    return app


def _certificates(settings: Settings, shared: Shared) -> Iterator[tuple[ssl.SSLContext, Path]]:
    """The contexts whose certificate comes from a directory."""
    if shared.tls and settings.cert_path:
        yield shared.tls, settings.cert_path
    if shared.metrics and shared.metrics.tls and settings.metrics_cert_dir:
        yield shared.metrics.tls, settings.metrics_cert_dir


def _rules(settings: Settings, connector: Connector, rank: int) -> Rules:
    return Rules(
        decoder=Endpoint("localhost", settings.model_server_port),
        own=own(settings, 0),
        base_port=settings.port,
        p2p_port=settings.p2p_connector_port,
        ranks=settings.data_parallel_size,
        pulls=settings.enable_p2p_pull if connector.pulls is None else connector.pulls,
        sample=settings.enable_prefiller_sampling,
    ).at(rank)


def own(settings: Settings, rank: int) -> Endpoint | None:
    """This rank of this pod as its peers name it; settings have `pod_ip` in its normal form."""
    return Endpoint(settings.pod_ip, settings.port + rank) if settings.pod_ip else None


def _stage(settings: Settings, name: str, resolver: Resolver) -> Stage:
    """The transport to the engines of one stage."""
    context = _engine_tls(settings, name)
    transport = Transport(
        ssl_context=context,
        connect_timeout_s=settings.connect_timeout_s,
        idle_expiry_s=_ENGINE_IDLE_S,
        max_idle_per_host=settings.max_idle_conns_per_host,
        resolver=resolver,
    )
    return Stage("https" if context else "http", transport)


def _engine_tls(settings: Settings, name: str) -> ssl.SSLContext | None:
    """TLS towards the engines of a stage that `--enable-tls` names; verified unless switched off."""
    if name not in settings.enable_tls:
        return None
    context = ssl.create_default_context()
    if name in settings.tls_insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _guard_times(settings: Settings) -> GuardTimes:
    return GuardTimes(
        budget_s=settings.source_guard_timeout_s,
        good_s=settings.source_guard_good_ttl_s,
        bad_s=settings.source_guard_bad_ttl_s,
        table_entries=settings.source_guard_table_size,
    )


def serving_tls(settings: Settings) -> ssl.SSLContext | None:
    """The context that clients are served with. Raises ValueError that begins with the flag's name."""
    if not settings.secure_serving:
        return None
    return serving_context(
        settings.cert_path, settings.tls_min_version, settings.tls_cipher_suites, settings.pod_ip
    )
