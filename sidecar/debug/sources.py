"""Says what is known of KV sources now: the guard's last probes, and what their pulls have given.

Rule: looks and changes nothing: no source is contacted and no trial is used up.
"""

from __future__ import annotations

from typing import Any

from sidecar.debug.reasons import SourceState
from sidecar.endpoint import Endpoint
from sidecar.guard import SourceGuard
from sidecar.yields import Yield, Yields

# Those told of last; a page of more is no longer read by anybody.
MAX_SHOWN = 200

_STATES = {True: "accepts", False: "refuses", None: "unknown"}


def state_of(p2p: Endpoint, guard: SourceGuard | None, yields: Yields) -> SourceState:
    """What a request that names this source would find."""
    known = "off" if guard is None else _STATES[guard.states.get(p2p)]
    return SourceState(known, yields.resting(p2p))


def table(guard: SourceGuard | None, yields: Yields) -> list[dict[str, Any]]:
    """Every source that is remembered, the one told of last first."""
    states = guard.states if guard else {}
    shown = list(reversed(dict.fromkeys([*states, *yields.sources])))[:MAX_SHOWN]
    return [_row(p2p, _STATES[states.get(p2p)] if guard else "off", yields) for p2p in shown]


def _row(p2p: Endpoint, guard: str, yields: Yields) -> dict[str, Any]:
    given = yields.sources.get(p2p) or Yield()
    return {
        "source": p2p.netloc,
        "guard": guard,
        "pulls": given.pulls,
        "moved_bytes": given.moved_bytes,
        "moved_tokens": given.moved_tokens,
        "nothing_in_a_row": given.in_a_row,
        "silent": given.silent,
        "resting": yields.resting(p2p),
    }
