"""MoRI-IO in write mode: the prefiller writes the blocks into the memory of the decoder that asked for them.

Rule: `nixlv2` with `--moriio-write-mode`. Serial: what P answers goes to D whole, completed with what it left
out. `--moriio-parallel-dispatch`: both legs at once, D's answer held until P's is 2xx. Both engines are told
one data-parallel rank: engines of a pod share a port, and the halves of a transfer must not meet two of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2s
from typing import Any

from sidecar import headers as names
from sidecar.api import Edits
from sidecar.body import BadBody, Body, dump
from sidecar.call import Call
from sidecar.connectors.options import MoRIIO, Options
from sidecar.kvparams import FIELD, well_typed
from sidecar.plan import Ask, Deliver, Leg, Plan, Start
from sidecar.routing import Route


def plan(call: Call, route: Route, options: Options) -> Plan:
    """Prefill on the route's prefiller and decode here, one after the other or side by side."""
    made = _side_by_side if options.moriio.parallel_dispatch else _in_turn
    return made(call, route, options.moriio)


def _in_turn(call: Call, route: Route, pods: MoRIIO) -> Plan:
    rank = rank_of(call.request_id, pods.dp_size)
    [reply] = yield Ask((_prefill(call, route, pods, rank),))
    params, lost = _answered(reply.body.get(FIELD, b"null"))
    content = None
    if params is not None:
        rank = _own_rank(params, pods.dp_size, rank)
        content = _completed(params, _left_out(call, pods), rank)
    decode = call.decode_after_prefill(route.decoder, content)
    return Deliver(_ranked(decode, pods, rank), cached_tokens=reply.cached_tokens, handoff_lost=lost)


def _side_by_side(call: Call, route: Route, pods: MoRIIO) -> Plan:
    rank = rank_of(call.request_id, pods.dp_size)
    prefill = _prefill(call, route, pods, rank)
    yield Start(replace(prefill, timeout_s=pods.parallel_decode_wait_timeout_s))
    assert route.prefiller is not None
    host, port = route.prefiller.endpoint.host, pods.prefill_handshake_port
    params = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        # IPv6 without brackets: as vLLM's moriio_connector spells an engine's id (`save_kv_layer`).
        "remote_engine_id": f"{host}:{port}",
        "remote_block_ids": [],  # D allocates them and tells P
        "remote_host": host,
        "remote_port": port,
        "remote_notify_port": pods.prefill_notify_port,
        "remote_handshake_port": port,
        **_shared(call, pods, rank),
        **_hosts(pods.remote_hosts, pods),
    }
    decode = call.decode_after_prefill(route.decoder, dump(params))
    return Deliver(_ranked(decode, pods, rank), after_started=True)


def rank_of(request_id: bytes, dp_size: int) -> int:
    """The rank, out of `dp_size`, of the request with this `x-request-id` (llm-d-router's dp_rank.go)."""
    return int.from_bytes(blake2s(request_id).digest()[:8], "big") % dp_size


def _prefill(call: Call, route: Route, pods: MoRIIO, rank: int) -> Leg:
    """P's leg, which says where D is; in both orders the same."""
    params = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": pods.local_pod_ip,
        "remote_port": None,
        "remote_notify_port": pods.decode_notify_port,
        "remote_handshake_port": pods.decode_handshake_port,
        **_shared(call, pods, rank),
        **_hosts(pods.decode_hosts, pods),
    }
    assert route.prefiller is not None
    return _ranked(call.prefill(route.prefiller, params, route.source), pods, rank)


def _shared(call: Call, pods: MoRIIO, rank: int) -> dict[str, Any]:
    """What both engines are told alike."""
    return {
        "remote_dp_rank": rank,
        "remote_dp_rank_override": True,  # no engine is to work a rank out itself
        "transfer_id": _transfer_id(call),
        "tp_size": pods.tp_size,
        "remote_dp_size": pods.dp_size,
    }


def _transfer_id(call: Call) -> str:
    """Engines tell messages about transfers by the prefix (vLLM, MoRIIOConstants.TRANSFER_PREFIX).

    One for all legs, a prefill that is sent again without its pull too. D has said once where it wants this
    transfer and waits: under another id P would write nothing there, and a D that is cancelled meanwhile
    never frees those blocks (vLLM 0.32 sched/scheduler.py, finish_requests). P writes only once the prompt
    is computed, so nothing for the leg that hung, and the id is the newer request's from then on
    (moriio_connector.py, map_request_id).
    """
    return f"tx{call.ids.handoff}"


def _hosts(hosts: tuple[str, ...], pods: MoRIIO) -> dict[str, Any]:
    """The pods of the other side by rank, where there are several: rank r is in pod r // dp_size_local."""
    if not hosts:
        return {}
    local = {"remote_dp_size_local": pods.dp_size_local} if pods.dp_size_local else {}
    return {"remote_hosts": hosts, **local}


def _ranked(leg: Leg, pods: MoRIIO, rank: int) -> Leg:
    """The leg with the rank that is to run it, as its pod counts."""
    if pods.dp_size == 1:
        return leg
    local = rank % pods.dp_size_local if pods.dp_size_local else rank
    return leg.with_header(names.DATA_PARALLEL_RANK, b"%d" % local)


def _answered(raw: bytes) -> tuple[Body | None, str | None]:
    """The params of P's answer; or why there are none to hand over."""
    if raw == b"null":
        return None, "prefill_without_kv_transfer_params"
    try:
        params = Body.parse(raw)
    except BadBody:
        return None, _UNUSABLE
    return (params, None) if well_typed(params.edited(_OURS)) else (None, _UNUSABLE)


_UNUSABLE = "prefill_with_incomplete_kv_transfer_params"
# What is said anew in any case, whatever P has said.
_OURS: Edits = {"remote_dp_rank": None, "remote_dp_rank_override": None}


def _own_rank(params: Body, dp_size: int, otherwise: int) -> int:
    """The rank that P says it ran on, if that is one."""
    try:
        said = params.value("remote_dp_rank")
    except BadBody:  # nested too deeply
        return otherwise
    if isinstance(said, bool) or not isinstance(said, int | float) or said not in range(dp_size):
        return otherwise
    return int(said)


def _left_out(call: Call, pods: MoRIIO) -> dict[str, Any]:
    """What D needs to know of P and P's answer may leave out: vLLM 0.32's names no rank and no hosts."""
    return {
        "transfer_id": _transfer_id(call),
        "remote_notify_port": pods.prefill_notify_port,
        "remote_handshake_port": pods.prefill_handshake_port,
        "remote_dp_size": pods.dp_size,
        **_hosts(pods.remote_hosts, pods),
    }


def _completed(params: Body, left_out: Mapping[str, Any], rank: int) -> bytes:
    missing = {key: value for key, value in left_out.items() if params.get(key, b"null") == b"null"}
    edits = {**missing, "remote_dp_rank": rank, "remote_dp_rank_override": True}
    return params.edited({key: dump(value) for key, value in edits.items()}).encode()
