"""The composition root: builds every part of one serving process once.

Rule: reads like a table of contents; no request passes through a branch that is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Coroutine, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Response

from sidecar import gauges
from sidecar.counters import UNCOUNTED
from sidecar.endpoint import Endpoint
from sidecar.exchange import Exchange
from sidecar.metrics_port import MetricsPort
from sidecar.observers import Observer
from sidecar.observers.board import Row, RowCounters
from sidecar.observers.ring import Ring
from sidecar.parts import build
from sidecar.readiness import Condition, Readiness
from sidecar.server.client_ca import Demand
from sidecar.server.limits import ClientLimits
from sidecar.server.run import Server, server
from sidecar.server.tls import reload_on_change, serving_context
from sidecar.services import Services
from sidecar.settings import Settings, config_of
from sidecar.stages import schemes_of

if TYPE_CHECKING:
    from sidecar.debug.endpoints import Debug
    from sidecar.server.client import Client

# How often a certificate that Kubernetes may have renewed is looked at.
_CERT_POLL_S = 10.0

# vLLM 0.32 and SGLang have no /ready on the port of their API (vLLM's dp_supervisor.py has, on its own).
_OWN_PATHS = frozenset(("/health", "/ready"))

Scope = MutableMapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shared:
    """What all processes of one sidecar have in common. tls: of the serving ports, None for plain HTTP.

    demand: what keeps that in step with `--client-ca-file`, None without.
    """

    tls: ssl.SSLContext | None
    metrics: MetricsPort | None = None
    demand: Demand | None = None

    @classmethod
    def of(cls, settings: Settings, metrics: MetricsPort | None = None) -> Shared:
        """Raises ValueError that begins with the flag's name."""
        if not settings.secure_serving:
            return cls(None, metrics)
        make = partial(
            serving_context,
            settings.cert_path,
            settings.tls_min_version,
            settings.tls_cipher_suites,
            settings.pod_ip,
        )
        if settings.client_ca_file is None:
            return cls(make(), metrics)
        demand = Demand(make, settings.client_ca_file, settings.cert_path)
        return cls(demand.context, metrics, demand)


def server_of(
    settings: Settings,
    watchers: Sequence[Observer],
    shared: Shared | None = None,
    *,
    rank: int = 0,
    row: Row | None = None,
) -> Server:
    """The whole sidecar of one rank as a server that is given its listening sockets.

    row: where this process counts; None while metrics are off.
    """
    shared = shared or Shared.of(settings)
    ring = Ring(settings.debug_ring) if settings.debug_endpoints else None
    watchers = [*watchers, *([ring] if ring else [])]
    services = build(settings, watchers, rank=rank, counters=UNCOUNTED if row is None else RowCounters(row))
    conditions: list[Condition] = []
    ready = Readiness([services.rules.decoder], services.engine_tls, conditions)
    own = Own(settings, shared, row, ready, _debug(settings, services, ring, rank) if ring else None)
    front = Front(services, own_endpoints(services, own))
    serving = server(front, shared.tls, settings.shutdown_grace_s, _limits(settings))
    conditions.append(lambda: "the sidecar is shutting down" if serving.should_exit else None)
    known = services.protection
    conditions.append(lambda: None if known.known else "the InferencePool is not known yet")
    return serving


class Front:
    """The ASGI application: the data path, in front of our own endpoints."""

    def __init__(self, services: Services, own: FastAPI) -> None:
        self._services = services
        self._own = own

    def direct(self, client: Client) -> Coroutine[Any, Any, None] | None:
        """What is posted is never for our own endpoints: an exchange, past ASGI (server/asgi.py)."""
        return Exchange(self._services, client).run() if client.method == b"POST" else None

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Our own endpoints and the lifespan go to FastAPI; every other request is an exchange."""
        if scope["type"] != "http" or (scope["path"] in _OWN_PATHS and scope["method"] == "GET"):
            await self._own(scope, receive, send)
        else:
            await Exchange(self._services, scope["extensions"]["sidecar.client"]).run()


@dataclass(frozen=True, slots=True)
class Own:
    """What our own endpoints are made of. row: where this process counts; None while metrics are off."""

    settings: Settings
    shared: Shared
    row: Row | None
    ready: Readiness
    debug: Debug | None


def own_endpoints(services: Services, own: Own) -> FastAPI:
    """The endpoints that the sidecar answers itself, and what runs beside the exchanges."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as background, contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(services.protection.running())
            if services.guard:
                await stack.enter_async_context(services.guard)
            await stack.enter_async_context(services.moriio_hosts)
            stack.push_async_callback(services.upstream.aclose)
            await stack.enter_async_context(services.started)
            await stack.enter_async_context(services.scraper)
            if services.rescuer:
                await stack.enter_async_context(services.rescuer)
            if own.row is not None:
                stack.callback(background.create_task(gauges.keep(own.row, services)).cancel)
            for looking in _looking(services, own.settings, own.shared):
                stack.callback(background.create_task(looking).cancel)
            if own.shared.metrics:
                ready = _of_all_ranks(own.ready, own.settings)
                await stack.enter_async_context(own.shared.metrics.serving(ready, own.debug))
            yield

    # FastAPI makes spans of its own when a tracer provider is set; ours are the only ones (section 10).
    silent: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
    app = FastAPI(lifespan=lifespan, openapi_url=None, telemetry=silent)

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200)

    app.get("/ready")(own.ready.answer)
    return app


def _of_all_ranks(ready: Readiness, settings: Settings) -> Readiness:
    """The metrics port is one for all ranks, whichever process answers there."""
    first = settings.model_server_port
    engines = [Endpoint("localhost", first + rank) for rank in range(settings.data_parallel_size)]
    return Readiness(engines, ready.tls, ready.conditions)


def _debug(settings: Settings, services: Services, ring: Ring, rank: int) -> Debug:
    from sidecar.debug.endpoints import Debug, Facts  # only when they are on

    facts = Facts(settings.kv_connector, schemes_of(settings), config_of(settings), rank, settings.processes)
    return Debug(services, ring, facts)


def _limits(settings: Settings) -> ClientLimits:
    return ClientLimits(
        settings.header_timeout_s,
        settings.max_header_bytes,
        settings.client_idle_timeout_s,
        settings.body_timeout_s,
    )


def _looking(services: Services, settings: Settings, shared: Shared) -> Iterator[Coroutine[Any, Any, None]]:
    """What looks at engines' counters, and after certificates that come from files."""
    yield services.verifier.run()
    if services.source_counters:
        yield services.source_counters.run()
    yield services.engine_tls.keep_up(_CERT_POLL_S)
    if shared.demand:
        yield shared.demand.keep_up(_CERT_POLL_S)
    elif shared.tls and settings.cert_path:
        yield reload_on_change(shared.tls, settings.cert_path, _CERT_POLL_S)
    if shared.metrics and shared.metrics.tls and settings.metrics_cert_dir:
        yield reload_on_change(shared.metrics.tls, settings.metrics_cert_dir, _CERT_POLL_S)
