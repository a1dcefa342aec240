"""Where pulling becomes faster than computing, and the threshold that follows from it.

Rule: pure; says nothing about lengths that were not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sidecar.calibrate.curves import Gain, between

_STEPS = 2000
"""Lengths that are looked at: on a range of 1 to 24 each is 0.16 % longer than the one before."""

DEFAULT_HEADROOM = 1.2
"""A pull also takes the source's time, which no single request shows: so much above the proven length."""


class Shape(StrEnum):
    """How the two curves lie to each other between the shortest and the longest length."""

    CROSSES = "crosses"
    PULLS_WIN = "pulls win everywhere"
    COMPUTING_WINS = "computing wins everywhere"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Crossover:
    """tokens: where the curves cross. low, high: the 95 % interval. All three are None but for CROSSES;
    tokens and low are None too where they are below the shortest length. shortest, longest: what was
    measured.
    """

    shape: Shape
    shortest: int
    longest: int
    tokens: float | None = None
    low: float | None = None
    high: float | None = None


def crossover(gain: Gain, shortest: int, longest: int) -> Crossover:
    """The crossover between two lengths.

    Pulls win where the gain's lower edge is over 0. It is UNCLEAR where even the longest proves nothing.
    """
    lengths = between(shortest, longest, _STEPS)
    if gain.at(longest) + gain.half_width(longest) < 0:
        return Crossover(Shape.COMPUTING_WINS, shortest, longest)
    if gain.at(longest) - gain.half_width(longest) <= 0:
        return Crossover(Shape.UNCLEAR, shortest, longest)
    # From the longest downwards: the last length at which each edge is not yet over 0.
    high = _last(lengths, lambda n: gain.at(n) - gain.half_width(n) <= 0)
    tokens = _last(lengths, lambda n: gain.at(n) <= 0)
    low = _last(lengths, lambda n: gain.at(n) + gain.half_width(n) <= 0)
    if high is None:
        return Crossover(Shape.PULLS_WIN, shortest, longest)
    return Crossover(Shape.CROSSES, shortest, longest, tokens, low, high)


def recommended(found: Crossover, headroom: float, block_tokens: int) -> int | None:
    """`minCachedTokenDelta`, a multiple of the block size; None where pulls are not to be enabled.

    From where pulls are proven to win, the upper edge of the interval, times the headroom. Where they win
    everywhere it is the shortest length: nothing below it was measured.
    """
    match found.shape:
        case Shape.CROSSES:
            assert found.high is not None
            return math.ceil(found.high * headroom / block_tokens) * block_tokens
        case Shape.PULLS_WIN:
            return found.shortest
        case Shape.COMPUTING_WINS | Shape.UNCLEAR:
            return None


def _last(lengths: Sequence[float], holds: Callable[[float], bool]) -> float | None:
    return next((length for length in reversed(lengths) if holds(length)), None)
