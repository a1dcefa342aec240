"""What a request's `kv_transfer_params` make an engine do, as seen on vLLM 0.32 and read in its sources.

Rule: pure; every oddity has its line here: what is ignored, what hangs, what ends the process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sidecar.lab.config import EngineConfig

Params = Mapping[str, object]

NIXL_FIELDS = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
"""Without one of these vLLM starts no read and never ends the request (update_state_after_alloc)."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A P2P peer and the id under which it knows the request."""

    kv_request_id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class RemoteBlocks:
    """KV that another engine holds for a decode (NIXL)."""

    block_ids: tuple[int, ...]
    engine_id: str
    request_id: str
    host: str
    port: int
    prefill_cached_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """At most one of `source` and `prefiller`; `fatal` ends the engine, `hangs` never ends the request."""

    source: Peer | None = None
    prefiller: Peer | None = None
    decoder_id: str | None = None
    hands_over: bool = False
    remote: RemoteBlocks | None = None
    hangs: bool = False
    fatal: str | None = None


NOTHING = Directive()


class _NotAnObject(Exception):
    """The engine calls `.get` on it: AttributeError in the scheduler, the engine process ends."""


def read_directive(params: Params | None, config: EngineConfig) -> Directive:
    """The directive for an engine with this connector; parameters of connectors it has not are ignored."""
    if not params:
        return NOTHING
    try:
        source, prefiller, decoder_id = _p2p(params) if config.offloads else (None, None, None)
    except _NotAnObject as error:
        return Directive(fatal=f"{error} has no attribute 'get'")
    if not config.has_nixl or not params.get("do_remote_prefill"):
        hands_over = config.has_nixl and bool(params.get("do_remote_decode"))
        return Directive(source=source, prefiller=prefiller, decoder_id=decoder_id, hands_over=hands_over)
    if not params.get("remote_block_ids"):
        # update_state_after_alloc asserts that no external tokens were claimed; they always were.
        return Directive(fatal="do_remote_prefill without remote_block_ids: assert num_external_tokens == 0")
    if not all(params.get(name) for name in NIXL_FIELDS):
        return Directive(hangs=True)
    return Directive(source=source, prefiller=prefiller, decoder_id=decoder_id, remote=_remote(params))


def _p2p(params: Params) -> tuple[Peer | None, Peer | None, str | None]:
    """Source, prefiller and decoder id (kv_offload/tiering/p2p/manager.py, _parse_source, _parse_dest)."""
    decoder_id = None
    if params.get("remote_decoder") is not None:
        decoder_id = _object(params["remote_decoder"]).get("kv_request_id")
    # Even an incomplete remote_prefiller hides remote_kv_source; a falsy one of either is ignored.
    if params.get("remote_prefiller") is not None:
        return None, _peer(params["remote_prefiller"]), _id(decoder_id)
    return _peer(params.get("remote_kv_source")), None, _id(decoder_id)


def _peer(value: object) -> Peer | None:
    if not value:
        return None
    fields = _object(value)
    kv_request_id, host, port = (fields.get(name) for name in ("kv_request_id", "remote_host", "remote_port"))
    if not (kv_request_id and host and port):
        return None
    return Peer(str(kv_request_id), str(host), _port(port))


def _object(value: object) -> Params:
    if not isinstance(value, Mapping):
        raise _NotAnObject(f"{type(value).__name__!r} object")
    return value


def _id(value: object) -> str | None:
    return str(value) if value else None


def _port(value: object) -> int:
    """It is pasted into an address, so a numeric string does; anything else is an address nobody has."""
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() and int(text) < 65536 else 0


def _remote(params: Params) -> RemoteBlocks:
    cached = params.get("remote_prefill_cached_tokens")
    return RemoteBlocks(
        block_ids=tuple(_block_ids(params["remote_block_ids"])),
        engine_id=str(params["remote_engine_id"]),
        request_id=str(params["remote_request_id"]),
        host=str(params["remote_host"]),
        port=_port(params["remote_port"]),
        prefill_cached_tokens=cached if isinstance(cached, int) else None,
    )


def _block_ids(groups: object) -> list[int]:
    """Ids of the only KV group; a flat list is what older engines sent."""
    if not isinstance(groups, Sequence) or isinstance(groups, str):
        return []
    first = groups[0]
    ids = first if isinstance(first, Sequence) and not isinstance(first, str) else groups
    return [block_id for block_id in ids if isinstance(block_id, int)]
