"""SGLang: both engines get the whole request at once and meet in a room of the prefiller's bootstrap server.

Rule: concurrent, and nothing is capped: a prefill engine of SGLang stops by itself once its blocks are handed
over. Fields by which a picker steers ranks (`routed_dp_rank`, `disagg_prefill_dp_rank`) stay as they came.
"""

from __future__ import annotations

from dataclasses import replace

from sidecar.api import Edits
from sidecar.body import dump
from sidecar.call import Call
from sidecar.connectors.options import Options
from sidecar.plan import Deliver, Plan, Role, Start
from sidecar.routing import Route


def plan(call: Call, route: Route, options: Options) -> Plan:
    """Start the prefill and decode beside it, with the same room on both."""
    assert route.prefiller is not None
    prefiller = route.prefiller.endpoint
    # One room for a body with many prompts, too: SGLang counts on from it, a room for each, alike on both
    # sides (python/sglang/srt/managers/io_struct.py, GenerateReqInput), and takes the bare host of an IPv6
    # prefiller (python/sglang/srt/disaggregation/decode.py, NetworkAddress; main, autumn 2026).
    meeting: Edits = {
        "bootstrap_host": dump(prefiller.host),
        "bootstrap_port": dump(options.sglang_bootstrap_port),
        "bootstrap_room": dump(call.ids.number),
    }
    room = call.ids.number
    yield Start(replace(call.uncapped(Role.PREFILL, prefiller, meeting), room=room))
    return Deliver(replace(call.uncapped(Role.DECODE, route.decoder, meeting), room=room))
