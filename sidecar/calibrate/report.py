"""Everything that a run has found, ready to be shown.

Rule: pure but for the fit, which needs numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.calibrate.agreement import agreed
from sidecar.calibrate.crossover import Crossover, crossover, recommended
from sidecar.calibrate.curves import Curve, Gain
from sidecar.calibrate.fitting import fitted
from sidecar.calibrate.outcomes import Outcome, Pair, causes, outcome
from sidecar.calibrate.plan import Kind
from sidecar.calibrate.summary import Figures, Row, figures, points, rows
from sidecar.calibrate.verdicts import Measured

RECOMPUTE_DEGREE = 2
"""Attention makes late tokens dearer: the time is quadratic in the length."""
PULL_DEGREE = 1
"""Bytes, and so the time, grow with the length."""
FEWEST_LEGS = 2
"""Of a kind and length, where more were asked for: what a single one took may be chance."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What was run, as the report shows it. load: background requests at a time on each engine.

    load_answered, load_failed: those of them that came to an end, on all engines.
    """

    source: str
    consumer: str
    pair: Pair
    model: str
    block_tokens: int
    legs: int
    rounds: int
    seed: int
    headroom: float
    load: int
    load_answered: int
    load_failed: int
    ranks: int
    token_ids: bool


@dataclass(frozen=True, slots=True)
class Report:
    """ended: how; the figures may be there all the same. gone: why a run could not go on."""

    setting: Setting
    ended: Outcome
    warm: Sequence[Measured]
    measured: Sequence[Measured]
    rows: Sequence[Row]
    recompute: Curve | None
    pull: Curve | None
    crossover: Crossover | None
    recommended: int | None
    figures: Figures
    causes: Sequence[str]
    gone: str | None = None

    @property
    def aside(self) -> list[Measured]:
        """The legs that do not count."""
        return [one for one in self.measured if not one.verdict.counts]


def reported(
    setting: Setting,
    warm: Sequence[Measured],
    measured: Sequence[Measured],
    cut: Outcome | None,
    gone: str | None,
) -> Report:
    """The report. cut: how it ended if it was cut short."""
    warm, measured = agreed(warm, measured)
    least_legs = min(setting.rounds, FEWEST_LEGS)
    timed = [points(measured, kind, least_legs) for kind in (Kind.RECOMPUTE, Kind.PULL)]
    curves = fitted(timed[0], RECOMPUTE_DEGREE), fitted(timed[1], PULL_DEGREE)
    lengths = [
        row.prefix_tokens
        for row in rows(measured)
        if min(spread.count if spread else 0 for spread in (row.recompute, row.pull)) >= least_legs
    ]
    found = None
    if curves[0] and curves[1] and len(lengths) > 1:
        found = crossover(Gain(curves[0], curves[1]), lengths[0], lengths[-1])
    whole = outcome(measured, warm, found)
    if whole in (Outcome.NO_PULL, Outcome.CONTAMINATED, Outcome.UNUSABLE):
        found = None  # curves through what is not trusted cross somewhere, and it means nothing
    ended = whole if cut is None else cut
    return Report(
        setting=setting,
        ended=ended,
        warm=warm,
        measured=measured,
        rows=rows(measured),
        recompute=curves[0],
        pull=curves[1],
        crossover=found,
        recommended=recommended(found, setting.headroom, setting.block_tokens) if found else None,
        figures=figures(measured, warm, curves[1]),
        causes=causes(ended, setting.pair, (*warm, *measured)),
        gone=gone,
    )
