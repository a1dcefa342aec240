"""A fitted curve, time to the first token in milliseconds of a prefix's length, with its confidence band.

Rule: pure arithmetic; lengths go in as tokens, and are thousands of them inside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

K = 1000
"""Tokens per unit of the coefficients: keeps them and their variances near each other in size."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A polynomial. coefficients: ms, ms per thousand tokens, and so on. covariance: of these.

    quantile: Student's, for a band of 95 %.
    """

    coefficients: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    quantile: float

    def at(self, tokens: float) -> float:
        """Milliseconds."""
        return sum(c * (tokens / K) ** power for power, c in enumerate(self.coefficients))

    def deviation(self, tokens: float) -> float:
        """The standard error of `at`, in ms."""
        powers = [(tokens / K) ** power for power in range(len(self.coefficients))]
        variance = sum(
            a * b * self.covariance[i][j] for i, a in enumerate(powers) for j, b in enumerate(powers)
        )
        return math.sqrt(max(0.0, variance))

    def half_width(self, tokens: float) -> float:
        """Half of the band, in ms."""
        return self.quantile * self.deviation(tokens)

    @property
    def text(self) -> str:
        """As a formula; k is thousands of tokens."""
        units = ("", " k", " k²", " k³")
        terms = [f"{c:.4g}{unit}" for c, unit in zip(self.coefficients, units, strict=False)]
        return " + ".join(terms).replace("+ -", "- ")


@dataclass(frozen=True, slots=True)
class Gain:
    """What a pull saves: one curve minus another."""

    recompute: Curve
    pull: Curve

    def at(self, tokens: float) -> float:
        """Milliseconds; positive where pulling is faster."""
        return self.recompute.at(tokens) - self.pull.at(tokens)

    def half_width(self, tokens: float) -> float:
        """Half of its band: the errors of the two are independent."""
        quantile = max(self.recompute.quantile, self.pull.quantile)
        return quantile * math.hypot(self.recompute.deviation(tokens), self.pull.deviation(tokens))


def between(first: float, last: float, steps: int) -> Sequence[float]:
    """So many lengths from one to the other, evenly on a logarithmic scale."""
    ratio = last / first
    return [first * ratio ** (i / steps) for i in range(steps + 1)]
