"""Makes the ways to the engines that the settings describe: one transport for each role.

Rule: acts only in making them; nothing is sent here.
"""

from __future__ import annotations

import ssl

from sidecar.plan import Role
from sidecar.settings import Settings
from sidecar.transport import Resolver, Transport
from sidecar.upstream import Stage

# vLLM's server closes idle connections after 5 s (uvicorn's default): ours go before.
_ENGINE_IDLE_S = 4.0

# What `--enable-tls` calls the engines of a role; bootstrap servers speak plain HTTP, whatever it says.
_NAMES = {
    Role.PREFILL: "prefiller",
    Role.DECODE: "decoder",
    Role.ENCODE: "encoder",
    Role.LOOKUP: "bootstrap",
    Role.TOKENIZE: "decoder",
}


def stages_of(settings: Settings, resolver: Resolver) -> dict[Role, Stage]:
    """The stage of every role; names of all of them are looked up by the one resolver."""
    return {role: _stage(settings, name, resolver) for role, name in _NAMES.items()}


def engine_tls(settings: Settings, name: str) -> ssl.SSLContext | None:
    """TLS towards the engines of a stage that `--enable-tls` names; verified unless switched off."""
    if name not in settings.enable_tls:
        return None
    context = ssl.create_default_context()
    if name in settings.tls_insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def schemes_of(settings: Settings) -> dict[Role, str]:
    """The URL scheme of every role's engines."""
    return {role: "https" if name in settings.enable_tls else "http" for role, name in _NAMES.items()}


def _stage(settings: Settings, name: str, resolver: Resolver) -> Stage:
    context = engine_tls(settings, name)
    transport = Transport(
        ssl_context=context,
        connect_timeout_s=settings.connect_timeout_s,
        idle_expiry_s=_ENGINE_IDLE_S,
        max_idle_per_host=settings.max_idle_conns_per_host,
        resolver=resolver,
    )
    return Stage("https" if context else "http", transport)
