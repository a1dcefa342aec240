"""Makes the ways to the engines that the settings describe: one transport for each role.

Rule: acts only in making them; nothing is sent here.
"""

from __future__ import annotations

from functools import partial

from sidecar.engine_tls import EngineTLS, Trust
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


def trust_of(settings: Settings) -> Trust:
    """What the settings say about certificates of engines."""
    names = (pair.partition("=") for pair in settings.upstream_server_name)
    return Trust(
        settings.enable_tls,
        settings.tls_insecure_skip_verify,
        {stage: name for stage, _, name in names},
        settings.upstream_ca_file,
        settings.upstream_client_cert_dir,
    )


def stages_of(settings: Settings, resolver: Resolver, tls: EngineTLS) -> dict[Role, Stage]:
    """The stage of every role; names of all of them are looked up by the one resolver."""
    return {role: _stage(settings, name, resolver, tls) for role, name in _NAMES.items()}


def schemes_of(settings: Settings) -> dict[Role, str]:
    """The URL scheme of every role's engines."""
    return {role: "https" if name in settings.enable_tls else "http" for role, name in _NAMES.items()}


def _stage(settings: Settings, name: str, resolver: Resolver, tls: EngineTLS) -> Stage:
    secure = name in settings.enable_tls
    transport = Transport(
        tls=partial(tls.towards, name) if secure else None,
        connect_timeout_s=settings.connect_timeout_s,
        idle_expiry_s=_ENGINE_IDLE_S,
        max_idle_per_host=settings.max_idle_conns_per_host,
        resolver=resolver,
    )
    transport.max_head_bytes = settings.max_response_header_bytes
    return Stage("https" if secure else "http", transport)
