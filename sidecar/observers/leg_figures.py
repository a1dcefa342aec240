"""Says what figures tell of legs: how each ended, and how long none ran.

Rule: pure, from records alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.errors import EngineDied
from sidecar.observers import LegRecord
from sidecar.observers.families import OTHER

_CLASSES = {hundred: f"{hundred}xx" for hundred in range(2, 6)}


def failed(leg: LegRecord) -> bool:
    """No answer, one that was cut off, or one that is not 2xx; not one that may still come.

    Nor a leg that was rescued: it was sent again at once, unless the client left in that moment. Nor a chunk
    whose refusal ended the text as a full context does: the exchange has no error then.
    """
    if leg.rescued:
        return leg is leg.exchange.legs[-1]
    if leg.leg.chunk and leg.status is not None and leg.exchange.error is None:
        return False
    if leg.error is not None or leg.status is None:
        return not _runs(leg)
    return not 200 <= leg.status < 300


def status_of(leg: LegRecord) -> str:
    """The leg's value of the label `status` (families.LEGS)."""
    if leg.error == "cancelled":
        return "cancelled"
    if leg.status is None:
        return "running" if _runs(leg) else "none"
    return "cut" if leg.error == EngineDied.label else _CLASSES.get(leg.status // 100, OTHER)


def _runs(leg: LegRecord) -> bool:
    """Whether its exchange was over before it: it ran beside it (`plan.Start`)."""
    return leg.started and leg.ended_s is None and leg.error is None


def overhead_s(legs: Sequence[LegRecord], started_s: float, ended_s: float) -> float:
    """Seconds of an exchange in which none of its legs ran: before the first, between, after the last."""
    if len(legs) == 1:
        leg = legs[0]
        return leg.started_s - started_s + ended_s - (leg.ended_s or ended_s)
    idle_s, reached_s = 0.0, started_s
    for leg in sorted(legs, key=lambda one: one.started_s):
        idle_s += max(0.0, leg.started_s - reached_s)
        reached_s = max(reached_s, leg.ended_s or ended_s)
    return idle_s + max(0.0, ended_s - reached_s)
