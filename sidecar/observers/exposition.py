"""Writes the board's totals in Prometheus's text format; the only module that needs prometheus_client.

Rule: reads the board and nothing else; imported only when there is a metrics port.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sidecar.observers.board import Board
from sidecar.observers.families import FAMILIES, Counter, Histogram

# Version 0.0.4 of the text format, the only one that the peer serves (promhttp without EnableOpenMetrics).
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition(Collector):
    """The text of `/metrics`."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """All families with their present values, summed over all processes."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client.registry.Collector."""
        totals = self._board.totals()
        for family in FAMILIES:
            values = totals[family.first : family.first + family.cells]
            match family:
                case Counter():
                    yield _counter(family, values)
                case Histogram():
                    yield _histogram(family, values)


def _counter(family: Counter, values: list[float]) -> Metric:
    labels = [family.label] if family.label else []
    metric = CounterMetricFamily(family.name, family.help, labels=labels)
    for label_value, value in zip(family.values, values, strict=True):
        metric.add_metric([label_value] if family.label else [], value)
    return metric


def _histogram(family: Histogram, values: list[float]) -> Metric:
    *counts, total_s = values
    # Bounds as Go spells them (1, not 1.0): to Prometheus before version 3 the text is the series.
    bounds = [*(f"{bound:g}" for bound in family.buckets), "+Inf"]
    metric = HistogramMetricFamily(family.name, family.help)
    metric.add_metric([], list(zip(bounds, accumulate(counts), strict=True)), total_s)
    return metric
