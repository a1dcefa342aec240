"""NIXL: the prefill answer's `kv_transfer_params` tell the decoder where to read the blocks.

Rule: serial. What P answers goes to D whole, unknown keys too, and once. With `--enable-p2p-pull` the prefill
leg, and only that one, also pulls (seen on vLLM 0.32 MultiConnector: on both legs it doubles the transfer).
With `--enable-bidirectional-kv-xfer` it reads the last turn from the decoder instead (`sidecar.reuse`).
"""

from __future__ import annotations

from sidecar.call import Call
from sidecar.connectors.options import Options
from sidecar.kvparams import FIELD, complete_handoff
from sidecar.plan import Deliver, Plan
from sidecar.reuse import kept, prefilled
from sidecar.routing import Route

# vLLM 0.32 nixl connector reads these six of a request that another engine will decode.
_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def plan(call: Call, route: Route, options: Options) -> Plan:
    """Prefill on the route's prefiller, then decode with the params that it answered."""
    reply = yield from prefilled(call, route, _PREFILL)
    params = reply.body.get(FIELD, b"null")
    lost = _why_lost(params)
    decode = call.decode_after_prefill(route.decoder, None if lost else params)
    return Deliver(decode, cached_tokens=reply.cached_tokens, handoff_lost=lost, keep=kept(call, reply))


def _why_lost(params: bytes) -> str | None:
    if params == b"null":
        return "prefill_without_kv_transfer_params"
    return None if complete_handoff(params) else "prefill_with_incomplete_kv_transfer_params"
