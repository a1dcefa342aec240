"""Says what the span of a leg tells: prefill, decode, an encoder's, a bootstrap server's; or of all chunks.

Rule: as in `spans`: pure, from records alone.
"""

from __future__ import annotations

import asyncio

from sidecar.errors import LegFailed
from sidecar.observers.records import ExchangeRecord, LegRecord
from sidecar.observers.spans import Attributes, Failure
from sidecar.plan import Role

# The finish reason by which an engine refuses an offered decode: it had less of the prompt than the request's
# cache_hit_threshold asks for (contract section 5, shared-storage).
_REFUSED = "cache_threshold"


def leg_end(record: LegRecord, connector: str) -> Attributes:
    """What a leg's span tells."""
    attributes = _whose(record.exchange, connector)
    match record.leg.role:
        case Role.PREFILL:
            return attributes | _prefill(record)
        case Role.DECODE:
            return attributes | _decode(record)
        case Role.ENCODE | Role.LOOKUP | Role.TOKENIZE:
            target = record.leg.target
            return attributes | {"server.address": target.host, "server.port": target.port}


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


def chunks_end(record: ExchangeRecord, connector: str) -> Attributes:
    """What the one span of a chunked decode tells. A chunk that was sent twice is one."""
    chunks = [(leg, leg.leg.chunk) for leg in record.legs if leg.leg.chunk is not None]
    (first, chunk), (last, _) = chunks[0], chunks[-1]
    attributes: Attributes = {
        **_whose(record, connector),
        **_meeting(first),
        "llm_d.pd_proxy.chunked_decode.chunk_size": chunk.size_tokens,
        "llm_d.pd_proxy.chunked_decode.streaming": record.streaming,
        "llm_d.pd_proxy.chunked_decode.chunks": 1 + max(chunk.index for _, chunk in chunks),
    }
    if record.completion_tokens is not None:
        attributes["llm_d.pd_proxy.chunked_decode.total_tokens"] = record.completion_tokens
    if (ended_s := last.ended_s or record.ended_s) is not None:
        attributes["llm_d.pd_proxy.chunked_decode.duration_ms"] = _ms(first.started_s, ended_s)
    return attributes


def chunks_failure(record: ExchangeRecord, error: BaseException | None) -> Failure | None:
    """A chunk that ended its exchange; not one whose refusal ends the text, nor what decoded in its stead."""
    last = record.legs[-1]
    if last.leg.chunk is None:
        return None
    if isinstance(error, asyncio.CancelledError):
        return Failure("cancelled", "cancelled")
    if record.error is None:
        return None
    if last.error == "cancelled":
        return Failure("cancelled", "cancelled")
    refused = last.status is not None and not 200 <= last.status < 300
    kind = last.error or (str(last.status) if refused else record.error)
    return Failure(kind, "chunked decode request failed")


def _whose(record: ExchangeRecord, connector: str) -> Attributes:
    attributes: Attributes = {"llm_d.pd_proxy.connector": connector}
    if record.request_id:
        attributes["llm_d.pd_proxy.request_id"] = record.request_id
    return attributes


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
    reason = _REFUSED if record.refused else exchange.handoff_lost or exchange.alone
    if reason is not None:
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
