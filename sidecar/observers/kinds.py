"""The kinds of metrics there are, and the cells in which each keeps its numbers.

Rule: pure. A metric's series are known from the start: every one of its label values is named here, so that a
number is a place in an array (`board`) and what a label can say is bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, MutableSequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TypeAlias

Cells: TypeAlias = "MutableSequence[float] | memoryview[float]"
Sampler: TypeAlias = "Callable[[Cells, float], None]"


@dataclass(frozen=True, slots=True)
class Label:
    """A label and all the values that it has."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Counter:
    """A count, or one for each combination of its labels' values. first: the cell of the first of them."""

    name: str
    help: str
    labels: tuple[Label, ...] = ()
    first: int = 0

    @property
    def cells(self) -> int:
        """How many numbers it has."""
        return prod(len(label.values) for label in self.labels)

    @property
    def series(self) -> list[tuple[str, ...]]:
        """The label values of each number, in the order of its cells."""
        return list(product(*(label.values for label in self.labels)))

    def cell(self, *values: str) -> int:
        """Where the number for these label values is; ValueError when there is none."""
        return self.first + self.series.index(values)


@dataclass(frozen=True, slots=True)
class Gauge(Counter):
    """What there is now, laid out as a counter is; of several processes, the sum.

    A process that has ended has nothing: its gauges are set to zero (`board.Board.clear_gauges`).
    """


@dataclass(frozen=True, slots=True)
class Histogram:
    """Samples by size. Its cells: one count per bucket, not cumulative, one for larger ones, the sum."""

    name: str
    help: str
    buckets: tuple[float, ...]
    first: int = 0

    @property
    def cells(self) -> int:
        """How many numbers it has."""
        return len(self.buckets) + 2

    @property
    def sum_cell(self) -> int:
        """Where the sum of all samples is."""
        return self.first + len(self.buckets) + 1

    def sampler(self) -> Sampler:
        """What adds one more sample to a row. (A closure: a method takes a third more time.)"""
        first, sum_cell = self.first, self.sum_cell
        # Comparing within one type is faster than across two: seconds are floats, bytes are whole numbers.
        whole = all(isinstance(bound, int) for bound in self.buckets)
        buckets = self.buckets if whole else tuple(map(float, self.buckets))

        def sample(row: Cells, amount: float) -> None:
            row[first + bisect_left(buckets, amount)] += 1
            row[sum_cell] += amount

        return sample


Family = Counter | Gauge | Histogram
