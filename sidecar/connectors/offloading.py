"""Offloading with vLLM's P2P tier: one id names the blocks that P keeps and D fetches from P's P2P port.

Rule: serial (an id that was never prefilled costs the decoder 30 s on vLLM 0.32). Of the prefill answer only
`usage` is read. The pull from a source has its own id and goes on the prefill leg only.
"""

from __future__ import annotations

from sidecar.body import dump
from sidecar.call import Call
from sidecar.connectors.options import Options
from sidecar.plan import Ask, Deliver, Plan
from sidecar.routing import Route


def plan(call: Call, route: Route, options: Options) -> Plan:
    """Prefill on the route's prefiller under a fresh id, then let the decoder fetch that id from it."""
    assert route.prefiller is not None
    handoff_id = call.ids.handoff
    remote_decoder = {"remote_decoder": {"kv_request_id": handoff_id}}
    [reply] = yield Ask((call.prefill(route.prefiller, remote_decoder, route.source),))
    remote_prefiller = {
        "kv_request_id": handoff_id,
        "remote_host": route.prefiller.p2p.host,
        "remote_port": route.prefiller.p2p.port,
    }
    decode = call.decode_after_prefill(route.decoder, dump({"remote_prefiller": remote_prefiller}))
    return Deliver(decode, cached_tokens=reply.cached_tokens)
