"""Counts exchanges and measures their stages, by the peer's rules (contract section 10).

Rule: from records alone, when the exchange is over; a number is added to a cell of this process's row. What
is not routed has no stages and is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import TracebackType

from sidecar.observers import ExchangeRecord, LegRecord, Observer, Watch
from sidecar.observers.board import Row
from sidecar.observers.families import (
    ANSWER_BYTES,
    DISAGG_REQUESTS,
    DURATIONS,
    HANDOFFS_LOST,
    IN_FLIGHT,
    LEGS,
    OTHER,
    OVERHEAD,
    PREFILL_FALLBACKS,
    PULLS_SKIPPED,
    REQUEST_BYTES,
    REQUEST_ERRORS,
    REQUESTS,
    TTFT,
    WRITE_INTERVAL,
)
from sidecar.observers.leg_figures import failed, overhead_s, status_of

_UNWATCHED: Watch = nullcontext()
_IN_FLIGHT_CELL = IN_FLIGHT.first
_REQUEST_CELLS = {value: REQUESTS.cell(value) for (value,) in REQUESTS.series}
_ERROR_CELLS = {stage: REQUEST_ERRORS.cell(stage) for (stage,) in REQUEST_ERRORS.series}
_LOST_CELLS = {reason: HANDOFFS_LOST.cell(reason) for (reason,) in HANDOFFS_LOST.series}
_SKIPPED_CELLS = {reason: PULLS_SKIPPED.cell(reason) for (reason,) in PULLS_SKIPPED.series}
_LEG_CELLS = {series: LEGS.cell(*series) for series in LEGS.series}
_STAGE_TOOK = {stage: histogram.sampler() for stage, histogram in DURATIONS.items()}
_decode_took = _STAGE_TOOK["decode"]
_overhead, _ttft, _write_interval = OVERHEAD.sampler(), TTFT.sampler(), WRITE_INTERVAL.sampler()
_request_bytes, _answer_bytes = REQUEST_BYTES.sampler(), ANSWER_BYTES.sampler()
_DECODED_CELL = LEGS.cell("decode", "2xx")


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of an exchange that is over. duration_s: None when it is not to be sampled."""

    name: str
    duration_s: float | None
    failed: bool


class Metrics(Observer):
    """Writes to `row`, which is this process's own."""

    def __init__(self, row: Row) -> None:
        self._row = row

    def exchange(self, record: ExchangeRecord) -> Watch:
        """See Observer.exchange."""
        return _UNWATCHED if record.api is None else _Counting(self._row, record)


class _Counting:
    """Counts the request when it is entered, as the peer does, and the rest when it is left."""

    __slots__ = ("_record", "_row")

    def __init__(self, row: Row, record: ExchangeRecord) -> None:
        self._row = row
        self._record = record

    def __enter__(self) -> None:
        api = self._record.api
        if api is not None:
            self._row[_REQUEST_CELLS[api.name]] += 1
            self._row[_IN_FLIGHT_CELL] += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        row, record = self._row, self._record
        row[_IN_FLIGHT_CELL] -= 1
        if _is_plain(record):
            _decode_took(row, _duration_s(record.legs, record))
            row[_DECODED_CELL] += 1
        else:
            self._count(row, record)
        if record.route is not None and record.route.no_pull is not None:
            row[_SKIPPED_CELLS[record.route.no_pull]] += 1
        if record.error is None:
            _measure(row, record)

    def _count(self, row: Row, record: ExchangeRecord) -> None:
        for stage in stages(record):
            if stage.failed:
                row[_ERROR_CELLS[stage.name]] += 1
            if stage.duration_s is not None:
                _STAGE_TOOK[stage.name](row, stage.duration_s)
        for leg in record.legs:
            row[_LEG_CELLS[leg.leg.role, status_of(leg)]] += 1
        if record.legs and (split := disagg_type(record)):
            row[DISAGG_REQUESTS.cell(split)] += 1
        if record.handoff_lost:
            row[_LOST_CELLS.get(record.handoff_lost, _LOST_CELLS[OTHER])] += 1
        if fell_back(record):
            row[PREFILL_FALLBACKS.first] += 1


def _is_plain(record: ExchangeRecord) -> bool:
    """Whether all there is to tell is one good decode: most exchanges, and then this costs a third."""
    if len(record.legs) != 1:
        return False
    leg, route = record.legs[0], record.route
    return not failed(leg) and leg.leg.role == "decode" and (route is None or route.prefiller is None)


def _measure(row: Row, record: ExchangeRecord) -> None:
    """Times and sizes of an exchange without an error, as its client saw it."""
    began_s, ended_s = record.first_byte_s, record.ended_s
    if ended_s is None or not record.legs:
        return
    _overhead(row, overhead_s(record.legs, record.started_s, ended_s))
    _request_bytes(row, record.request_bytes)
    _answer_bytes(row, record.sent_bytes)
    if record.streaming and began_s is not None and record.status == 200:
        _ttft(row, began_s - record.started_s)
        if record.writes > 1:
            _write_interval(row, (ended_s - began_s) / (record.writes - 1))


def stages(record: ExchangeRecord) -> Iterator[Stage]:
    """The stages of an exchange that is over, each with all its legs as one (chunks, encoders).

    A failed encode stage has no sample (the peer's rule). A decode that was cut off because the prefill
    beside it failed is not the decoder's failure, and no sample either.
    """
    by_role: dict[str, list[LegRecord]] = {}
    for leg in record.legs:
        if not leg.refused:  # a decode-first attempt that said it is none leaves no trace here
            by_role.setdefault(leg.leg.role, []).append(leg)
    if _any_failed(by_role.get("prefill", ())) and record.error != "client_gone":
        by_role["decode"] = [leg for leg in by_role.get("decode", ()) if leg.error != "cancelled"]
    for role, legs in by_role.items():
        if legs and role in DURATIONS:
            broken = _any_failed(legs)
            sampled = not (broken and role == "encode")
            yield Stage(role, _duration_s(legs, record) if sampled else None, broken)


def disagg_type(record: ExchangeRecord) -> str | None:
    """Which stages ran apart from the decoder: `p/d`, `e/p/d`, `e/pd`; None for none."""
    encoded = any(leg.leg.role == "encode" for leg in record.legs)
    if record.route is not None and record.route.prefiller is not None and record.alone is None:
        return "e/p/d" if encoded else "p/d"
    return "e/pd" if encoded else None


def fell_back(record: ExchangeRecord) -> bool:
    """Whether a decode began after the request's prefill had failed."""
    failed_s = [
        leg.ended_s for leg in record.legs if leg.leg.role == "prefill" and leg.ended_s and failed(leg)
    ]
    return bool(failed_s) and any(
        leg.leg.role == "decode" and leg.started_s >= min(failed_s) for leg in record.legs
    )


def _any_failed(legs: Sequence[LegRecord]) -> bool:
    return any(failed(leg) for leg in legs)


def _duration_s(legs: Sequence[LegRecord], record: ExchangeRecord) -> float:
    """From the first leg's start to the last one's end; a leg that was never ended ends with its exchange."""
    if len(legs) == 1:
        return (legs[0].ended_s or record.ended_s or legs[0].started_s) - legs[0].started_s
    ends_s = [leg.ended_s or record.ended_s or leg.started_s for leg in legs]
    return max(ends_s) - min(leg.started_s for leg in legs)
