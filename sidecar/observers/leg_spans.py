"""Says what the span of a leg tells: prefill, decode, an encoder's, a bootstrap server's.

Rule: as in `spans`: pure, from records alone.
"""

from __future__ import annotations

import asyncio

from sidecar.errors import LegFailed
from sidecar.observers.records import LegRecord
from sidecar.observers.spans import Attributes, Failure
from sidecar.plan import Role


def leg_end(record: LegRecord, connector: str) -> Attributes:
    """What a leg's span tells."""
    attributes: Attributes = {"llm_d.pd_proxy.connector": connector}
    if record.exchange.request_id:
        attributes["llm_d.pd_proxy.request_id"] = record.exchange.request_id
    match record.leg.role:
        case Role.PREFILL:
            return attributes | _prefill(record)
        case Role.DECODE:
            return attributes | _decode(record)
        case Role.ENCODE | Role.LOOKUP | Role.TOKENIZE:
            return attributes | {"server.address": record.leg.target.host}


def leg_failure(record: LegRecord, error: BaseException | None) -> Failure | None:
    """A leg that raised, or whose answer is not 2xx (the peer's text: "prefill request failed")."""
    if isinstance(error, asyncio.CancelledError):
        return Failure("cancelled", "cancelled")
    text = f"{record.leg.role} request failed"
    if error is not None:
        return Failure(error.label if isinstance(error, LegFailed) else type(error).__name__, text)
    if record.status is not None and not 200 <= record.status < 300:
        return Failure(str(record.status), text)
    return None


def _prefill(record: LegRecord) -> Attributes:
    attributes: Attributes = {
        "llm_d.pd_proxy.prefill_target": record.leg.target.netloc,
        "llm_d.pd_proxy.prefill.async": record.started,
        **_meeting(record),
    }
    if record.status is not None:
        attributes["llm_d.pd_proxy.prefill.status_code"] = record.status
    if record.ended_s is not None:
        attributes["llm_d.pd_proxy.prefill.duration_ms"] = _ms(record.started_s, record.ended_s)
    return attributes


def _decode(record: LegRecord) -> Attributes:
    exchange = record.exchange
    attributes: Attributes = {
        "llm_d.pd_proxy.decode.target": record.leg.target.netloc,
        "llm_d.pd_proxy.decode.streaming": exchange.streaming,
        "llm_d.pd_proxy.decode.data_parallel": bool(exchange.route and exchange.route.data_parallel),
        **_meeting(record),
    }
    if (reason := exchange.handoff_lost or exchange.alone) is not None:
        attributes["llm_d.pd_proxy.reason"] = reason
    if record.ended_s is not None:
        attributes["llm_d.pd_proxy.decode.duration_ms"] = _ms(record.started_s, record.ended_s)
    prefill = next((leg for leg in exchange.legs if leg.leg.role is Role.PREFILL), None)
    return attributes if prefill is None else attributes | _handoff(prefill, record)


def _meeting(record: LegRecord) -> Attributes:
    """How the legs of a concurrent handoff find each other."""
    attributes: Attributes = {}
    if record.leg.room is not None:
        attributes["llm_d.pd_proxy.bootstrap_room"] = record.leg.room
    if record.exchange.held:
        attributes["llm_d.pd_proxy.parallel_dispatch"] = True
    return attributes


def _handoff(prefill: LegRecord, decode: LegRecord) -> Attributes:
    """The sums that the peer puts on the decode span of a P/D request."""
    started_s = decode.exchange.started_s
    concurrent = prefill.started
    attributes: Attributes = {
        "llm_d.pd_proxy.decode.concurrent_with_prefill": concurrent,
        "llm_d.pd_proxy.concurrent_pd": concurrent,
        # The peer's meaning (its tracing proposal): until the decoder can start, not until its first byte.
        "llm_d.pd_proxy.true_ttft_ms": _ms(started_s, decode.started_s),
    }
    if prefill.ended_s is not None:
        attributes["llm_d.pd_proxy.prefill_duration_ms"] = _ms(prefill.started_s, prefill.ended_s)
        if not concurrent:
            attributes["llm_d.pd_proxy.coordinator_overhead_ms"] = _ms(prefill.ended_s, decode.started_s)
    if decode.ended_s is not None:
        attributes["llm_d.pd_proxy.decode_duration_ms"] = _ms(decode.started_s, decode.ended_s)
        attributes["llm_d.pd_proxy.total_duration_ms"] = _ms(started_s, decode.ended_s)
    return attributes


def _ms(start_s: float, end_s: float) -> float:
    return round((end_s - start_s) * 1000, 3)
