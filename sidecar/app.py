"""The composition root: builds every part once and serves until told to stop.

Rule: reads like a table of contents; no request passes through a branch that is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import ssl
import sys
from collections.abc import AsyncIterator, MutableMapping
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Response

from sidecar import __version__, headers, logs
from sidecar.connectors import CONNECTORS, Connector, Options
from sidecar.endpoint import Endpoint
from sidecar.exchange import Exchange
from sidecar.guard import GuardTimes, SourceGuard
from sidecar.heap import keep_freed_memory
from sidecar.intake import Limits
from sidecar.kvparams import Policy
from sidecar.observers import Observers
from sidecar.observers.log import ExchangeLog
from sidecar.planning import Planner
from sidecar.recall import remembering
from sidecar.routing import Rules
from sidecar.server.run import Server, listen, server
from sidecar.server.tls import reload_on_change, serving_context
from sidecar.services import Services
from sidecar.settings import Settings, start_line
from sidecar.started import StartedLegs
from sidecar.transport import Resolver, Transport
from sidecar.upstream import STAGE_OF, Retries, Stage, Upstream
from sidecar.websocket import Tunnels

if TYPE_CHECKING:
    from sidecar.observers.tracing import Tracing

# vLLM's server closes idle connections after 5 s (uvicorn's default): ours go before.
_ENGINE_IDLE_S = 4.0
# How often a certificate that Kubernetes may have renewed is looked at.
_CERT_POLL_S = 10.0

Scope = MutableMapping[str, Any]

logger = logging.getLogger("sidecar")


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT. The exit code: 0; 1 if the port cannot be had; 2 for a wrong setting."""
    logs.configure(settings.log_level, settings.log_format)
    keep_freed_memory(os.environ)
    try:
        tracing = _tracing(settings)
        serving = server_of(settings, Observers([ExchangeLog(), tracing] if tracing else [ExchangeLog()]))
    except ValueError as error:  # says which variable or flag
        return _refuse(2, str(error))
    try:
        listener = listen(settings.host, settings.port)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # the socket module repeats the address
        flag = "--host" if isinstance(error, socket.gaierror) else "--port"
        return _refuse(1, f"{flag}: cannot listen on {settings.host or '*'}:{settings.port}: {reason}")
    sys.stderr.write(start_line(settings, __version__) + "\n")
    _warn(settings)
    try:
        serving.run(sockets=[listener])
    finally:
        if tracing:
            tracing.shutdown()
    return 0


def _refuse(code: int, reason: str) -> int:
    sys.stderr.write(f"sidecar: {reason}\n")
    return code


def _warn(settings: Settings) -> None:
    """What an operator should know from the first line on (contract section 1)."""
    if not settings.enable_ssrf_protection:
        names = ", ".join(sorted(name.decode() for name in headers.ROUTING))
        logger.warning(
            "SSRF protection is off (--enable-ssrf-protection): whoever reaches this port chooses what hosts "
            "are contacted, by the headers %s",
            names,
        )
    if not settings.pod_ip:
        logger.warning("POD_IP is not set: a KV source that is this pod itself cannot be recognised")


def server_of(settings: Settings, observers: Observers) -> Server:
    """The whole sidecar as a server that is given its listening sockets."""
    services = build(settings, observers)
    context = _serving_tls(settings)
    front = Front(services, own_endpoints(services, settings, context))
    return server(front, context, settings.shutdown_grace_s)


def build(settings: Settings, observers: Observers) -> Services:
    """The parts that every exchange uses."""
    connector = CONNECTORS[settings.kv_connector]
    resolver = Resolver()
    return Services(
        rules=_rules(settings, connector),
        planner=Planner(connector, _options(settings)),
        limits=Limits(settings.max_request_bytes, Policy(settings.client_kv_transfer_params)),
        upstream=Upstream(
            {role: _stage(settings, name, resolver) for role, name in STAGE_OF.items()},
            observers,
            Retries(settings.prefill_max_retries, settings.prefill_retry_backoff_s),
        ),
        observers=observers,
        tunnels=Tunnels(observers, _engine_tls(settings, "decoder"), settings.connect_timeout_s),
        guard=SourceGuard(_guard_times(settings), resolver) if settings.source_guard == "on" else None,
        choose=random.randrange,
        started=StartedLegs(settings.shutdown_grace_s),
        turns=remembering(settings),
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


def own_endpoints(services: Services, settings: Settings, context: ssl.SSLContext | None) -> FastAPI:
    """The endpoints that the sidecar answers itself, and what runs beside the exchanges."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as background, contextlib.AsyncExitStack() as stack:
            if services.guard:
                await stack.enter_async_context(services.guard)
            stack.push_async_callback(services.upstream.aclose)
            await stack.enter_async_context(services.started)
            if context and settings.cert_path:
                poll = background.create_task(reload_on_change(context, settings.cert_path, _CERT_POLL_S))
                stack.callback(poll.cancel)
            yield

    # FastAPI makes spans of its own when a tracer provider is set; ours are the only ones (section 10).
    silent: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
    app = FastAPI(lifespan=lifespan, openapi_url=None, telemetry=silent)

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200)

    return app


def _rules(settings: Settings, connector: Connector) -> Rules:
    return Rules(
        decoder=Endpoint("localhost", settings.model_server_port),
        own=_own(settings),
        base_port=settings.port,
        p2p_port=settings.p2p_connector_port,
        ranks=settings.data_parallel_size,
        pulls=settings.enable_p2p_pull if connector.pulls is None else connector.pulls,
        sample=settings.enable_prefiller_sampling,
    )


def _options(settings: Settings) -> Options:
    return Options(
        mooncake_bootstrap_port=settings.mooncake_bootstrap_port,
        sglang_bootstrap_port=settings.sglang_bootstrap_port,
    )


def _own(settings: Settings) -> Endpoint | None:
    """This pod as its peers name it; settings have `pod_ip` in its normal form."""
    return Endpoint(settings.pod_ip, settings.port) if settings.pod_ip else None


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


def _serving_tls(settings: Settings) -> ssl.SSLContext | None:
    if not settings.secure_serving:
        return None
    return serving_context(
        settings.cert_path, settings.tls_min_version, settings.tls_cipher_suites, settings.pod_ip
    )


def _tracing(settings: Settings) -> Tracing | None:
    if not settings.tracing:
        return None
    from sidecar.observers.tracing import Tracing, tracer_provider  # only when it is on

    return Tracing(
        tracer_provider(os.environ, __version__),
        settings.kv_connector,
        scheme="https" if settings.secure_serving else "http",
        own=_own(settings),
    )
