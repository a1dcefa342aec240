"""The composition root: builds every part once and serves until told to stop.

Rule: reads like a table of contents; no request passes through a branch that is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Coroutine, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Response

from sidecar import __version__, headers, logs
from sidecar.exchange import Exchange
from sidecar.heap import keep_freed_memory
from sidecar.observers import Observer
from sidecar.observers.log import ExchangeLog
from sidecar.parts import build, own_endpoint
from sidecar.server.run import Server, listen, server
from sidecar.server.tls import reload_on_change, serving_context
from sidecar.services import Services
from sidecar.settings import Settings, start_line

if TYPE_CHECKING:
    from sidecar.observers.tracing import Tracing
    from sidecar.server.client import Client

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
        serving = server_of(settings, [ExchangeLog(), tracing] if tracing else [ExchangeLog()])
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


def server_of(settings: Settings, watchers: Sequence[Observer]) -> Server:
    """The whole sidecar as a server that is given its listening sockets."""
    services = build(settings, watchers)
    context = _serving_tls(settings)
    front = Front(services, own_endpoints(services, settings, context))
    return server(front, context, settings.shutdown_grace_s)


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
            await stack.enter_async_context(services.scraper)
            verifying = background.create_task(services.verifier.run())
            stack.callback(verifying.cancel)
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
        ec_connector=settings.ec_connector,
        scheme="https" if settings.secure_serving else "http",
        own=own_endpoint(settings),
    )
