"""Judges where an engine's P2P tier listens, by what accepted connections and what its configuration says.

Rule: pure. A port is judged from where the diagnosis runs: what its peers can reach they alone know.
"""

from __future__ import annotations

from ipaddress import ip_address

from sidecar.doctor.findings import Finding, Severity, fine, untold
from sidecar.doctor.told import Configuration, Port, Told

# Where a tier without `host` or `port` binds: VLLM_P2P_SIDE_CHANNEL_HOST and _PORT (vLLM 0.32, envs.py).
_DEFAULT_HOST, _DEFAULT_PORT = "localhost", 5710
_EVERYWHERE = frozenset(("0.0.0.0", "::", "*"))

CHECK = "P2P port"


def address(told: Told) -> Finding:
    """Whether the port of the first rank accepts, and at which address the tier binds."""
    if not told.ports:
        return untold(CHECK, told.name, "it was not tried")
    port = told.ports[0]
    if port.open:
        return _open(told, port)
    return Finding(Severity.ERROR, CHECK, (told.name,), "shut", _shut(told, port), _remedy(told, port))


def _open(told: Told, port: Port) -> Finding:
    host = port.endpoint.host
    if is_loopback(host) and not is_loopback(told.peer.place.endpoint.host):
        says = f"its P2P address is {port.endpoint.netloc}, which is another machine's own for every peer"
        change = f"Name its address on the network: --p2p {told.name}=HOST:PORT."
        return Finding(Severity.ERROR, CHECK, (told.name,), "loopback", says, change)
    bound = _bound(told.configuration)
    if bound in _EVERYWHERE:
        says = f"its P2P tier binds {bound}, and peers dial back the address that it says it has"
        change = "Give the tier the pod's own address as host."
        return Finding(Severity.WARNING, CHECK, (told.name,), "every address", says, change)
    return fine(CHECK, told.name, f"open, {port.took_ms or 0:.1f} ms")


def _shut(told: Told, port: Port) -> str:
    says = f"nothing accepts at {port.endpoint.netloc} ({port.why}), so no engine was told of it"
    if port.loopback:
        return f"{says}; 127.0.0.1:{port.endpoint.port} does: the tier is bound to loopback only"
    bound = _bound(told.configuration)
    if bound:
        return f"{says}; its configuration binds {bound}:{_port(told.configuration)}"
    if told.configuration and not told.configuration.tier:
        return f"{says}; its configuration has no P2P tier"
    return f"{says}; whether it is bound elsewhere is not told"


def _remedy(told: Told, port: Port) -> str:
    if not told.families.tiering:
        return (
            'Start the engine with the OffloadingConnector, "spec_name": "TieringOffloadingSpec" and a '
            'secondary tier of type "p2p".'
        )
    return (
        f'Give the P2P tier "host": the pod\'s address and "port": {port.endpoint.port} (else vLLM binds '
        f"{_DEFAULT_HOST}:{_DEFAULT_PORT}), open the port in every NetworkPolicy, or name another: --p2p."
    )


def _bound(configuration: Configuration | None) -> str | None:
    if configuration is None or configuration.tier is None:
        return None
    return configuration.tier.host or configuration.side_host or _DEFAULT_HOST


def _port(configuration: Configuration | None) -> int:
    tier = configuration.tier if configuration else None
    return tier.port if tier and tier.port else _DEFAULT_PORT


def is_loopback(host: str) -> bool:
    """Whether a host is this machine for whoever dials it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
