"""Shared storage: prefiller and decoder read and write one store, so the legs tell each other nothing.

Rule: serial. A body with a `cache_hit_threshold` is decoded first: an engine that has less of the prompt than
that says so instead of computing it (`cache_threshold`, vLLM RFC 24256), and then a prefiller is asked.
"""

from __future__ import annotations

import re

from sidecar.api import Edits
from sidecar.body import Body
from sidecar.call import Call
from sidecar.connectors.options import Options
from sidecar.plan import Ask, Deliver, Offer, Plan, Role
from sidecar.routing import Route

THRESHOLD = "cache_hit_threshold"

# Whoever is asked next computes; a body that names no threshold gets none.
_NO_THRESHOLD: Edits = {THRESHOLD: b"0"}
# No engine has less of a prompt than nothing: a decode that cannot be refused would leave the prefiller out
# (after encoders the threshold is always 0).
_NEVER_REFUSED = re.compile(rb"null|-?0(?:\.0+)?(?:[eE][+-]?[0-9]+)?")


def plan(call: Call, route: Route, options: Options) -> Plan:
    """Decode if the decoder has enough of the prompt; else prefill on the route's prefiller, then decode."""
    assert route.prefiller is not None
    if not _NEVER_REFUSED.fullmatch(call.body.get(THRESHOLD, b"null")):
        yield Offer(call.uncapped(Role.DECODE, route.decoder, {}), _below_threshold)
    computes = _NO_THRESHOLD if THRESHOLD in call.body else {}
    yield Ask((call.capped(Role.PREFILL, route.prefiller.endpoint, computes),))
    return Deliver(call.uncapped(Role.DECODE, route.decoder, computes))


def _below_threshold(answer: Body) -> bool:
    """Whether the answer, or the event, says that the engine has too little of the prompt."""
    choices = answer.value("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and first.get("finish_reason") == "cache_threshold"
