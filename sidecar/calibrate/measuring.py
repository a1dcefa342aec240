"""Runs the warm pulls and all legs, in their order, and keeps what each gave.

Rule: acts; whatever ends a run, what was measured until then stays in its `Found`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sidecar.calibrate import legs
from sidecar.calibrate.background import Load
from sidecar.calibrate.cost import WARM_TRIES
from sidecar.calibrate.legs import Couple
from sidecar.calibrate.plan import Kind, Leg
from sidecar.calibrate.verdicts import Measured, Rise, Verdict
from sidecar.remote import RemoteError, Uncounted

Seen = Callable[[Measured], None]
"""Told of every leg that was run."""

MOST_FAILURES = 3
"""In a row; then an engine is gone, or does not take the prompts, and more of them would only wait."""
# The number and length of a prompt that asks whether the consumer answers without a directive; no leg has it.
_PLAIN, _PLAIN_TOKENS = -1_000_000, 64
# So many controls, all of them contaminated, are enough.
_ENOUGH_CONTROLS = 3


@dataclass(slots=True)
class Found:
    """What a run has given so far. warm: the discarded first pulls. load: what the background has done.

    gone: why it could not go on.
    """

    warm: list[Measured] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    load: Load = field(default_factory=Load)
    gone: str | None = None


async def measure(couples: Sequence[Couple], order: Sequence[Leg], found: Found, seen: Seen) -> None:
    """Run everything; ends early where more legs could not change the outcome."""
    shortest = min(leg.prefix_tokens for leg in order)
    for rank, couple in enumerate(couples):
        if not await _warm(couple, rank, shortest, found, seen):
            return
    failures = 0
    for leg in order:
        one = await _run(couples[leg.rank], leg)
        found.measured.append(one)
        seen(one)
        failures = failures + 1 if one.verdict is Verdict.FAILED else 0
        if failures >= MOST_FAILURES:
            found.gone = one.reason
        if found.gone or _hopeless(found.measured):
            return


async def _warm(couple: Couple, rank: int, tokens: int, found: Found, seen: Seen) -> bool:
    """The first pull of a pair, which also makes its session; whether it moved in a few tries."""
    for number in range(WARM_TRIES):
        # Numbers below zero: no leg has them, and -1 is the probe's.
        leg = Leg(-2 - rank * WARM_TRIES - number, -1, Kind.PULL, tokens, rank)
        one = await _run(couple, leg)
        found.warm.append(one)
        seen(one)
        if one.verdict is Verdict.MOVED:
            return True
        if one.verdict is Verdict.FAILED:
            # A pull that hangs takes all of its time: it is not tried again.
            found.gone = one.reason if one.seed_ms is None else await _gone(couple)
            return False
    return False


async def _gone(couple: Couple) -> str | None:
    """Why the consumer gives no answer at all; None where only pulls fail."""
    try:
        await couple.consumer.healthy()
        await couple.consumer.complete(couple.model, couple.prompts.make(_PLAIN, _PLAIN_TOKENS))
    except RemoteError as error:
        return str(error)
    return None


async def _run(couple: Couple, leg: Leg) -> Measured:
    try:
        return await legs.run(couple, leg)
    except Uncounted as error:
        return Measured(leg, Verdict.UNUSABLE, str(error), leg.prefix_tokens, None, None, Rise())
    except RemoteError as error:
        return Measured(leg, Verdict.FAILED, str(error), leg.prefix_tokens, None, None, Rise())


def _hopeless(measured: Sequence[Measured]) -> bool:
    controls = [one for one in measured if one.leg.kind is Kind.RECOMPUTE]
    return len(controls) >= _ENOUGH_CONTROLS and all(one.verdict is Verdict.CONTAMINATED for one in controls)
