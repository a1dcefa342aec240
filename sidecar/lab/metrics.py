"""Counters, gauges and histograms, and their text as vLLM's `/metrics` writes it.

Rule: knows the format only; which series exist is in `series.py`. A series with labels of its own appears
when it is first used, unless its family lists values that are there from the start.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. `initial`: label sets that exist from the start; `common`: common labels it carries."""

    name: str
    kind: str
    help: str
    buckets: tuple[float, ...] = ()
    initial: tuple[Labels, ...] = ()
    common: tuple[str, ...] = ("engine", "model_name")


@dataclass(slots=True)
class _Series:
    value: float = 0.0
    counts: list[int] = field(default_factory=list)
    created_s: float = field(default_factory=lambda: datetime.now(UTC).timestamp())


class Metrics:
    """All series of one engine; `labels` are the values of the common labels (engine, model_name)."""

    def __init__(self, families: Iterable[Family], labels: Mapping[str, str]) -> None:
        self._families = {family.name: family for family in families}
        self._labels = dict(labels)
        self._series: dict[str, dict[Labels, _Series]] = {name: {} for name in self._families}
        for family in self._families.values():
            for initial in family.initial:
                self._at(family.name, dict(initial))

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Adds to a counter or a gauge. What the engine has no family for is not kept."""
        if name in self._families:
            self._at(name, labels).value += amount

    def put(self, name: str, value: float, **labels: str) -> None:
        """Sets a gauge."""
        if name in self._families:
            self._at(name, labels).value = value

    @contextmanager
    def level(self, name: str, **labels: str) -> Iterator[None]:
        """A gauge that counts who is inside this context."""
        self.add(name, 1, **labels)
        try:
            yield
        finally:
            self.add(name, -1, **labels)

    def observe(self, name: str, value: float) -> None:
        """One observation of a histogram."""
        if name in self._families:
            series = self._at(name, {})
            series.value += value
            series.counts[bisect_left(self._families[name].buckets, value)] += 1

    def value(self, name: str, **labels: str) -> float:
        """A counter's or gauge's value, or a histogram's sum; 0 for a series not seen yet."""
        series = self._series[name].get(tuple(sorted(labels.items())))
        return series.value if series else 0.0

    def count(self, name: str) -> int:
        """Observations of a histogram."""
        return sum(sum(series.counts) for series in self._series[name].values())

    def text(self) -> str:
        """The exposition text (Prometheus text format 0.0.4, as prometheus_client writes it)."""
        return "".join(line for family in self._families.values() for line in self._lines(family))

    def _at(self, name: str, labels: Mapping[str, str]) -> _Series:
        family, key = self._families[name], tuple(sorted(labels.items()))
        series = self._series[name].get(key)
        if series is None:
            size = len(family.buckets) + 1 if family.kind == "histogram" else 0
            series = self._series[name][key] = _Series(counts=[0] * size)
        return series

    def _lines(self, family: Family) -> Iterable[str]:
        yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
        series = self._series[family.name]
        for labels, one in series.items():
            if family.kind == "histogram":
                yield from self._histogram_lines(family, labels, one)
            else:
                yield self._line(family, "", labels, one.value)
        if series and family.kind != "gauge":
            name = f"{family.name.removesuffix('_total')}_created"
            created = replace(family, name=name)
            yield f"# HELP {name} {family.help}\n# TYPE {name} gauge\n"
            yield from (self._line(created, "", labels, one.created_s) for labels, one in series.items())

    def _histogram_lines(self, family: Family, labels: Labels, one: _Series) -> Iterable[str]:
        seen = 0
        for bound, count in zip((*family.buckets, float("inf")), one.counts, strict=True):
            seen += count
            yield self._line(family, "_bucket", (*labels, ("le", _number(bound))), seen)
        yield self._line(family, "_count", labels, seen)
        yield self._line(family, "_sum", labels, one.value)

    def _line(self, family: Family, suffix: str, labels: Labels, value: float) -> str:
        common = ((name, self._labels[name]) for name in family.common)
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in sorted((*common, *labels)))
        return f"{family.name}{suffix}{f'{{{pairs}}}' if pairs else ''} {_number(value)}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    """A float as Go and prometheus_client write it: exponents from a million on."""
    if value == float("inf"):
        return "+Inf"
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+0{dot - 1}"
    return text
