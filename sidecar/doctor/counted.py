"""What an engine's counters say of one request, by how much they rose while it ran.

Rule: pure. A labelled series appears at first use, so an absent one is zero where its connector is there. A
counter that is no count, or that fell, says nothing, and is never taken for zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite

from sidecar.engine_counters import Series, read, series_of, spoiled, total
from sidecar.remote.texts import shown

# What engines with that connector need not count. One that has computed a prompt has looked it up: of one
# without that series it is not known whether it was asked.
_SELDOM = frozenset(("served_bytes", "pulled_tokens", "looked_up"))
_PRIMARY = b'primary"'
# Field of Counted -> the series behind it: those of `engine_counters` where they have one of that name.
_LOOKED_UP: Series = (
    (b"vllm:kv_offload_tiering_chunk_queries_total", _PRIMARY),
    (b"vllm:kv_offload_tiering_block_queries_total", _PRIMARY),
)
# What was stored, as engines count it that have no series of that alone.
_OFFLOADED: Series = ((b"vllm:kv_offload_total_bytes_total", b'transfer_type="GPU_to_CPU"'),)
FIELDS = (
    "pulled_bytes",
    "pulled_tokens",
    "served_bytes",
    "written_bytes",
    "stored_bytes",
    "looked_up",
    "local_tokens",
)
_SERIES: Mapping[str, Series] = {
    **{name: series_of(name) for name in FIELDS if name != "looked_up"},
    "looked_up": _LOOKED_UP,
    "stored_bytes": series_of("stored_bytes") + _OFFLOADED,
}


@dataclass(frozen=True, slots=True)
class Counted:
    """Sums over an engine's series. looked_up: chunks that its own tier was asked for, by itself and peers.

    stored_bytes: that its tier took in. written_bytes: these, and what it gave to peers; served_bytes: what
    it gave alone, where it counts that. local_tokens: prompt tokens of its own cache. faults: by the field's
    name, why it cannot be used.
    """

    pulled_bytes: float | None = None
    pulled_tokens: float | None = None
    served_bytes: float | None = None
    written_bytes: float | None = None
    stored_bytes: float | None = None
    looked_up: float | None = None
    local_tokens: float | None = None
    faults: Mapping[str, str] = field(default_factory=dict)

    @property
    def given_bytes(self) -> float | None:
        """At least so much went to peers, of the rise of these sums (`giving.given` says why)."""
        if self.served_bytes is not None or self.written_bytes is None:
            return self.served_bytes
        if "stored_bytes" in self.faults:
            return None
        return max(0.0, self.written_bytes - (self.stored_bytes or 0.0))

    def of(self, *names: str) -> tuple[str, ...]:
        """Why these fields cannot be used; empty when they can."""
        return tuple(self.faults[name] for name in names if name in self.faults)


def counted(metrics: bytes) -> Counted:
    """Of an engine's text of metrics."""
    told = read(metrics)
    nothing = None if metrics.strip() else "/metrics gave nothing"
    found = {name: nothing or shown(spoiled(metrics, (series,)) or "") for name, series in _SERIES.items()}
    return Counted(
        told.pulled_bytes,
        told.pulled_tokens,
        told.served_bytes,
        told.written_bytes,
        told.stored_bytes or total(metrics, _OFFLOADED) or told.stored_bytes,
        # The older name only where the newer is not, or chunks would count twice.
        next((sum_ for one in _LOOKED_UP if (sum_ := total(metrics, (one,))) is not None), None),
        told.local_tokens,
        {name: why for name, why in found.items() if why},
    )


def rise(before: Counted, after: Counted, *, tiering: bool) -> Counted:
    """By how much each has risen. tiering: the engine has the connector that counts."""
    faults = {**dict(_fallen(before, after)), **before.faults, **after.faults}
    risen = {
        name: _risen(
            getattr(before, name), getattr(after, name), 0.0 if tiering and name not in _SELDOM else None
        )
        for name in FIELDS
    }
    usable = {name: None if name in faults else value for name, value in risen.items()}
    return Counted(**usable, faults=faults if tiering else {})


def _fallen(before: Counted, after: Counted) -> Iterator[tuple[str, str]]:
    """What no counter does while its engine runs: fields, and what they did."""
    for name in FIELDS:
        first, last = getattr(before, name) or 0.0, getattr(after, name) or 0.0
        if first > last:
            to = "is gone" if getattr(after, name) is None else f"fell from {first:,.0f} to {last:,.0f}"
            yield name, f"{_SERIES[name][0][0].decode()} {to}"
        elif not isfinite(last - first):
            yield name, f"{_SERIES[name][0][0].decode()} is beyond all counting"


def _risen(before: float | None, after: float | None, absent: float | None) -> float | None:
    return absent if after is None else after - (before or 0.0)
