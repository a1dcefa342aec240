"""Mooncake: the prefiller's engine writes the blocks of a transfer id to the decoder that asks for them.

Rule: concurrent. Which engines (ranks) a prefiller has is asked of its bootstrap server and remembered; the
prefill leg must end at its cap, for an engine that stops by itself frees its blocks at once (vLLM 0.32,
MooncakeConnectorScheduler.request_finished).
"""

from __future__ import annotations

import re

from sidecar import headers as names
from sidecar.body import BadBody, Body, dump
from sidecar.call import Call
from sidecar.connectors.options import Options
from sidecar.errors import UnusableAnswer
from sidecar.plan import Ask, Deliver, Leg, Plan, Role, Start
from sidecar.routing import Route

# Seconds for the whole answer (contract section 5): the server only looks into a table, but it is a thread of
# an engine's process and may be kept waiting by it.
QUERY_TIMEOUT_S = 5.0
# Seconds. The map changes when a rank registers late or an engine starts again behind the same address. A leg
# that fails drops it at once, but a decoder may recompute in silence (`kv_load_failure_policy`): so long at
# most goes that, for one small question in that time and prefiller.
REMEMBERED_S = 30.0
# vLLM keys the map by whole numbers; what else comes must not get into a header.
_RANK = re.compile("[0-9]{1,6}", re.ASCII)


def plan(call: Call, route: Route, options: Options) -> Plan:
    """Find the prefiller's engines, start the prefill on one of them, and decode from that one beside it."""
    assert route.prefiller is not None
    transfer_id = f"xfer-{call.ids.handoff}"
    prefill = call.stopless().prefill(
        route.prefiller,
        {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id},
        None,
    )
    server = route.prefiller.endpoint.with_port(options.mooncake_bootstrap_port)
    query = Leg(Role.LOOKUP, server, b"GET", b"/query", (), b"", timeout_s=QUERY_TIMEOUT_S)
    [reply] = yield Ask((query,), REMEMBERED_S)
    engines = _engines(reply.body)
    if not engines:
        raise UnusableAnswer(query, f"the bootstrap server at {server.netloc} names no engine with a rank")
    rank, engine_id = engines[call.ids.number % len(engines)]
    yield Start(prefill.with_header(names.DATA_PARALLEL_RANK, rank.encode()))
    params = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "transfer_id": transfer_id,
        "remote_bootstrap_addr": f"http://{server.netloc}",
        "remote_engine_id": engine_id,
    }
    return Deliver(call.decode_after_prefill(route.decoder, dump(params)))


def _engines(ranks: Body) -> list[tuple[str, str]]:
    """Rank and engine id of every usable entry, in the order of the answer."""
    found = ((rank, _engine_id(ranks[rank])) for rank in ranks if _RANK.fullmatch(rank))
    return [(rank, engine_id) for rank, engine_id in found if engine_id]


def _engine_id(entry: bytes) -> str:
    """The entry's engine id; empty where it has none."""
    try:
        engine_id = Body.parse(entry).value("engine_id")
    except BadBody:
        return ""
    return engine_id if isinstance(engine_id, str) else ""
