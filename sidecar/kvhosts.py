"""Finds the hosts that a client's body would make an engine contact, and refuses what is not allowed.

Rule: pure. Only with SSRF protection on, and only for what goes on as the client said it: hosts are judged
without their ports, for engines have P2P, side-channel and bootstrap ports that no InferencePool names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sidecar.allowlist import Allowlist
from sidecar.body import BadBody, Body
from sidecar.endpoint import Endpoint, MalformedEndpoint
from sidecar.errors import BadRequest
from sidecar.kvparams import PLACES, find

# Objects within the params that name a peer each.
_PEERS = ("remote_kv_source", "remote_prefiller", "remote_decoder")
# SGLang's field at the top of a body: a text, or a list of them for several prompts (sglang
# srt/managers/io_struct.py, GenerateReqInput).
_BOOTSTRAP_HOST = "bootstrap_host"
_ADDRESS = "remote_bootstrap_addr"


def refuse_others(body: Body, allowlist: Allowlist) -> None:
    """Raises BadRequest, naming the field, for a host that is not on the list or cannot be read."""
    for name, host in _named(body):
        if not isinstance(host, str) or not allowlist.allows_host(host):
            raise BadRequest(f'field "{name}" names a host that SSRF protection does not allow')


def _named(body: Body) -> Iterator[tuple[str, Any]]:
    """Every host with the field that names it; None where there should be one and cannot be read."""
    yield from _each(_BOOTSTRAP_HOST, _value(body, _BOOTSTRAP_HOST))
    for place in PLACES:
        raw = find(body, place)
        if raw is None or not raw.startswith(b"{"):
            continue
        name, params = ".".join(place), Body.parse(raw)
        for field in ("remote_host", "remote_hosts"):
            yield from _each(f"{name}.{field}", _value(params, field))
        if (address := _value(params, _ADDRESS)) is not None:
            yield f"{name}.{_ADDRESS}", _host_of(address)
        for field in _PEERS:
            peer = params.get(field, b"null")
            if peer.startswith(b"{"):
                yield from _each(f"{name}.{field}.remote_host", _value(Body.parse(peer), "remote_host"))


def _value(body: Body, field: str) -> Any:
    """The decoded field; None when it is absent or null, and no text when it is too much to decode."""
    try:
        return body.value(field) if body.get(field, b"null") != b"null" else None
    except BadBody:
        return False


def _each(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    values = value if isinstance(value, list) else [value]
    return ((name, host) for host in values if host is not None)


def _host_of(address: Any) -> str | None:
    """The host of `http://host:port`; no other shape, for readers of URLs differ (RFC 3986 section 7.6)."""
    if not isinstance(address, str):
        return None
    try:
        return Endpoint.parse(address.removeprefix("https://").removesuffix("/")).host
    except MalformedEndpoint:
        return None
