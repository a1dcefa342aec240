"""Writes the board's totals in Prometheus's text format; the only module that needs prometheus_client.

Rule: reads the boards and nothing else; imported only when there is a metrics port.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sidecar.observers.board import Board
from sidecar.observers.families import FAMILIES
from sidecar.observers.kinds import Counter, Gauge, Histogram
from sidecar.observers.peers import PEER_FAMILIES, PeerBoard

# Version 0.0.4 of the text format, the only one that the peer serves (promhttp without EnableOpenMetrics).
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition(Collector):
    """The text of `/metrics`. peers: None without `--metrics-peers`."""

    def __init__(self, board: Board, peers: PeerBoard | None = None) -> None:
        self._board = board
        self._peers = peers
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
            if isinstance(family, Histogram):
                yield _histogram(family, values)
            else:
                yield _numbers(family, zip(family.series, values, strict=True))
        if self._peers is not None:
            totals_by_source = self._peers.totals()
            for family in PEER_FAMILIES:
                cells = range(family.first, family.first + family.cells)
                series = [(source, *labels) for source in totals_by_source for labels in family.series]
                numbers = [totals_by_source[source][cell] for source in totals_by_source for cell in cells]
                yield _numbers(family, zip(series, numbers, strict=True), "source")


def _numbers(family: Counter, samples: Iterable[tuple[tuple[str, ...], float]], *before: str) -> Metric:
    """before: labels ahead of the family's own."""
    kind = GaugeMetricFamily if isinstance(family, Gauge) else CounterMetricFamily
    metric = kind(family.name, family.help, labels=[*before, *(label.name for label in family.labels)])
    for values, number in samples:
        metric.add_metric(list(values), number)
    return metric


def _histogram(family: Histogram, values: list[float]) -> Metric:
    *counts, total = values
    # Bounds as Go spells them (1, not 1.0): to Prometheus before version 3 the text is the series.
    bounds = [*(_go(bound) for bound in family.buckets), "+Inf"]
    metric = HistogramMetricFamily(family.name, family.help)
    metric.add_metric([], list(zip(bounds, accumulate(counts), strict=True)), total)
    return metric


def _go(bound: float) -> str:
    """A number as Go's strconv.FormatFloat(bound, 'g', -1, 64) has it: exponents from 1e-05 and 1e+21 on."""
    whole = int(bound)
    return str(whole) if whole == bound else repr(float(bound))
