"""Scales and ticks of the picture.

Rule: pure; both axes are logarithmic, since lengths double and the crossover stands among the short ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values from `least` to `most` onto pixels from `start` to `end`."""

    least: float
    most: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a value; those outside go to the edges."""
        value = min(max(value, self.least), self.most)
        share = math.log(value / self.least) / math.log(self.most / self.least)
        return self.start + share * (self.end - self.start)


def around(values: Iterable[float], start: float, end: float, *, room: float) -> Axis:
    """An axis that holds all values, `room` (a share of their ratio) wider on both sides."""
    values = [value for value in values if value > 0]
    least, most = min(values), max(values)
    # A single value has an axis too.
    margin = max((most / least) ** room, 1.1)
    return Axis(least / margin, most * margin, start, end)


_STEPS = ((1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9))
_ENOUGH_TICKS = 4


def round_ticks(axis: Axis) -> Sequence[float]:
    """Round numbers on an axis: 1, 2 and 5 of each power of ten, or finer where these are few."""
    ticks: list[float] = []
    for steps in _STEPS:
        low, high = math.floor(math.log10(axis.least)), math.ceil(math.log10(axis.most))
        ticks = [step * 10.0**power for power in range(low, high + 1) for step in steps]
        ticks = [tick for tick in ticks if axis.least <= tick <= axis.most]
        if len(ticks) >= _ENOUGH_TICKS:
            break
    return ticks


def spaced(axis: Axis, values: Sequence[float], least_px: float) -> list[float]:
    """Of some values those whose labels do not touch, from the last one back."""
    kept: list[float] = []
    for value in sorted(values, reverse=True):
        if not kept or abs(axis.at(kept[-1]) - axis.at(value)) >= least_px:
            kept.append(value)
    return kept[::-1]
