"""Writes one structured line per exchange, and one more where an operator should look.

Rule: no header values but the request id, no query, no body. Level info; warnings for what is lost.
"""

from __future__ import annotations

import functools
import logging
from types import TracebackType
from typing import Any

from sidecar.endpoint import Endpoint
from sidecar.evidence import Outcome
from sidecar.logs import tell
from sidecar.observers import ExchangeRecord, Observer, Watch
from sidecar.observers.records import LegRecord

logger = logging.getLogger("sidecar.exchange")


class ExchangeLog(Observer):
    """The line of each exchange: who asked for what, which legs ran, what was pulled or why not."""

    def exchange(self, record: ExchangeRecord) -> Watch:
        """See Observer.exchange."""
        return _Line(record)


class _Line:
    """Writes when it is left. (A class: a generator's context manager costs half as much as the line.)"""

    __slots__ = ("_record",)

    def __init__(self, record: ExchangeRecord) -> None:
        self._record = record

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        record = self._record
        if record.handoff_lost:
            logger.warning(
                "decoding without a prefiller's blocks: the local engine computes the prompt",
                extra={"fields": {"reason": record.handoff_lost, "request_id": record.request_id}},
            )
        if logger.isEnabledFor(logging.INFO):
            tell(logger, "exchange", line(record))


def line(record: ExchangeRecord) -> dict[str, Any]:
    """The fields of the line; times in milliseconds since the request's head was read."""
    started_s = record.started_s
    fields: dict[str, Any] = {
        "method": record.method,
        "path": record.path,
        "api": record.api.name if record.api else None,
        "status": record.status,
        "request_id": record.request_id,
        "duration_ms": _ms(started_s, record.ended_s),
        "ttfb_ms": _ms(started_s, record.first_byte_s),
        "sent_bytes": record.sent_bytes,
        "streaming": record.streaming,
        "legs": [_leg(leg) for leg in record.legs],
    }
    if record.route and record.route.named_source:
        fields["source"] = _netloc(record.route.named_source.host, record.route.named_source.port)
    if reason := record.handoff_lost or record.alone or (record.route and record.route.no_pull):
        fields["reason"] = str(reason)
    if record.turn:
        fields["turn"] = str(record.turn)
    if record.error:
        fields["error"] = record.error
    if record.detail:
        fields["detail"] = record.detail
    if record.denied_target:
        fields["denied_target"] = record.denied_target
    if record.trace_id:
        fields["trace_id"] = record.trace_id
    return fields


def _leg(record: LegRecord) -> dict[str, Any]:
    leg = record.leg
    fields: dict[str, Any] = {
        "role": str(leg.role),
        "target": _netloc(leg.target.host, leg.target.port),
        "status": record.status,
        "started_ms": _ms(record.exchange.started_s, record.started_s),
        "duration_ms": _ms(record.started_s, record.ended_s),
    }
    if leg.pull:
        source = leg.pull.source
        fields["pull"] = {
            "source": _netloc(source.endpoint.host, source.p2p_port),
            "kv_request_id": leg.pull.kv_request_id,
        }
        if record.rescued:  # the others' outcomes are mostly not known yet
            fields["pull"]["outcome"] = str(Outcome.RESCUED)
    if record.refused:  # a decode-first attempt, of which nothing reached the client
        fields["refused"] = True
    if leg.reads:
        fields["reads"] = leg.reads
    if record.attempts > 1:
        fields["attempts"] = record.attempts
    if record.error:
        fields["error"] = record.error
    return fields


@functools.lru_cache(1024)  # engines are few; a host has at most 253 characters
def _netloc(host: str, port: int) -> str:
    return Endpoint(host, port).netloc


def _ms(start_s: float, end_s: float | None) -> float | None:
    # Microseconds are whole numbers: rounding to places is ten times as slow.
    return None if end_s is None else round((end_s - start_s) * 1e6) / 1000
