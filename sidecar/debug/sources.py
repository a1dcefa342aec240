"""Says what is known of KV sources now: the guard's last probes, and what their pulls have given.

Rule: looks and changes nothing: no source is contacted and no trial is used up.
"""

from __future__ import annotations

from typing import Any

from sidecar.debug.reasons import SourceState
from sidecar.endpoint import Endpoint
from sidecar.guard import Probed, SourceGuard
from sidecar.yields import Yield, Yields

# Those told of last; a page of more is no longer read by anybody.
MAX_SHOWN = 200


def state_of(p2p: Endpoint, guard: SourceGuard | None, yields: Yields) -> SourceState:
    """What a request that names this source would find."""
    probed = guard.states.get(p2p) if guard else None
    known = _called(guard, probed if probed and probed.holds else None)
    return SourceState(known, yields.suspended(p2p))


def table(guard: SourceGuard | None, yields: Yields) -> list[dict[str, Any]]:
    """Every source that is remembered, the one told of last first."""
    states = guard.states if guard else {}
    shown = list(reversed(dict.fromkeys([*states, *yields.sources])))[:MAX_SHOWN]
    return [_row(p2p, guard, states.get(p2p), yields) for p2p in shown]


def _called(guard: SourceGuard | None, probed: Probed | None) -> str:
    if guard is None:
        return "off"
    return "unknown" if probed is None else "accepts" if probed.good else "refuses"


def _row(p2p: Endpoint, guard: SourceGuard | None, probed: Probed | None, yields: Yields) -> dict[str, Any]:
    given = yields.sources.get(p2p) or Yield()
    return {
        "source": p2p.netloc,
        "guard": _called(guard, probed),
        "guard_holds": probed is not None and probed.holds,
        "pulls": given.pulls,
        "moved_bytes": given.moved_bytes,
        "moved_tokens": given.moved_tokens,
        "source_says": {str(says): count for says, count in given.says.items()},
        "nothing_in_a_row": given.in_a_row,
        "silent": given.silent,
        "resting": yields.suspended(p2p),
    }
