"""Medians with their spread, by length, and the figures that follow from the curves.

Rule: pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from sidecar.calibrate.agreement import bytes_per_token
from sidecar.calibrate.curves import Curve, K
from sidecar.calibrate.plan import Kind
from sidecar.calibrate.verdicts import Measured, Verdict

_BYTES_PER_MS_IN_GB_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class Spread:
    """Times of legs of one kind and length, in ms."""

    median: float
    least: float
    most: float
    count: int


@dataclass(frozen=True, slots=True)
class Row:
    """One length. moved_bytes: median of its pulls. aside: legs that do not count."""

    prefix_tokens: int
    recompute: Spread | None
    pull: Spread | None
    moved_bytes: float | None
    aside: int

    @property
    def delta_ms(self) -> float | None:
        """What pulling saves; negative where it costs."""
        return self.recompute.median - self.pull.median if self.recompute and self.pull else None


@dataclass(frozen=True, slots=True)
class Figures:
    """floor_ms: the fixed part of a pull. setup_ms: what the first pull of a pair took above a later one.

    gb_per_s: 10^9 bytes per second, of what each further token costs. All None where nothing proves them.
    """

    kv_bytes_per_token: float | None = None
    gb_per_s: float | None = None
    floor_ms: float | None = None
    floor_half_width_ms: float | None = None
    setup_ms: float | None = None


def rows(measured: Sequence[Measured]) -> list[Row]:
    """A row for each length that was run."""
    return [_row(length, measured) for length in sorted({one.leg.prefix_tokens for one in measured})]


def _row(length: int, measured: Sequence[Measured]) -> Row:
    mine = [one for one in measured if one.leg.prefix_tokens == length]
    moved = [one.rise.pulled_bytes or 0.0 for one in mine if one.verdict is Verdict.MOVED]
    return Row(
        length,
        _spread(mine, Verdict.CLEAN),
        _spread(mine, Verdict.MOVED),
        median(moved) if moved else None,
        sum(not one.verdict.counts for one in mine),
    )


def _spread(measured: Iterable[Measured], verdict: Verdict) -> Spread | None:
    times = [one.ttft_ms for one in measured if one.verdict is verdict and one.ttft_ms is not None]
    return Spread(median(times), min(times), max(times), len(times)) if times else None


def points(measured: Iterable[Measured], kind: Kind, least_legs: int) -> list[tuple[int, float]]:
    """(tokens, ms) of each leg of a kind that counts, of the rows that have so many of them.

    Prompts of text have about the tokens of their row.
    """
    found = [one for one in measured if one.leg.kind is kind and one.verdict.counts and one.ttft_ms]
    legs = Counter(one.leg.prefix_tokens for one in found)
    return [
        (one.prefix_tokens, one.ttft_ms or 0.0) for one in found if legs[one.leg.prefix_tokens] >= least_legs
    ]


def figures(measured: Sequence[Measured], warm: Sequence[Measured], pull: Curve | None) -> Figures:
    """What the pulls that count tell about the path."""
    moved = [one for one in (*measured, *warm) if one.verdict is Verdict.MOVED]
    if not moved:
        return Figures()
    per_token = median(bytes_per_token(one) for one in moved)
    if pull is None:
        return Figures(per_token)
    slope_ms = pull.coefficients[1] / K
    first = [one.ttft_ms - pull.at(one.prefix_tokens) for one in warm if one.ttft_ms and one in moved]
    return Figures(
        kv_bytes_per_token=per_token,
        gb_per_s=per_token / slope_ms / _BYTES_PER_MS_IN_GB_PER_S if slope_ms > 0 else None,
        floor_ms=pull.at(0),
        floor_half_width_ms=pull.half_width(0),
        setup_ms=max(first) if first else None,
    )
