"""What observers see of one exchange: facts and times, filled in while it runs.

Rule: plain records. Whoever acts writes each field once; observers only read them, except that
tracing writes `Attempt.headers` and `ExchangeRecord.trace_id`.
Times are seconds of the monotonic clock; None until the moment has come.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sidecar.api import Api
from sidecar.endpoint import Endpoint
from sidecar.evidence import Outcome
from sidecar.giving import Says
from sidecar.headers import Headers
from sidecar.plan import Leg, Role
from sidecar.routing import Route


@dataclass(slots=True, kw_only=True)
class ExchangeRecord:
    """One client request from its head to the last byte of its answer.

    request_headers: as the client sent them. route: None on paths that are not routed. status: sent to the
    client, None when nothing was sent. error: a short label. detail: what the client was told of it.
    Neither has text of a body. streaming: the client gets
    an SSE stream. handoff_lost: why the decoder got no blocks although a prefiller was asked for them.
    alone: why no prefiller was asked although the route names one. held: the answer waited for a started
    leg's (`plan.Deliver.after_started`). completion_tokens: of an answer that a plan has composed; a chunked
    decode's legs have `leg.chunk`. turn: what came of remembering the turn of a chat, by a short label; None
    without that. denied_target: the prefiller that SSRF protection did not allow.
    trace_id: of the request's trace, 32 lower-case hex digits; None without tracing.
    writes: in how many pieces the answer's body was written. request_bytes: of the request's body as it was
    sent, where it was read. model: the body's own, as it is spelled in JSON, where the body was read.
    """

    method: str
    path: str
    request_headers: Headers
    api: Api | None
    started_s: float
    request_id: str = ""
    trace_id: str | None = None
    route: Route | None = None
    status: int | None = None
    error: str | None = None
    detail: str | None = None
    streaming: bool = False
    handoff_lost: str | None = None
    held: bool = False
    alone: str | None = None
    denied_target: str | None = None
    completion_tokens: int | None = None
    turn: str | None = None
    first_byte_s: float | None = None
    ended_s: float | None = None
    sent_bytes: int = 0
    writes: int = 0
    request_bytes: int = 0
    model: bytes | None = None
    legs: list[LegRecord] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class LegRecord:
    """One leg of an exchange, with all its attempts. status: of the last attempt, None without an answer.

    started: it ran beside the exchange (`plan.Start`). refused: its answer said that it is none
    (`plan.Offer`), and nothing of it reached the client. rescued: it pulled, hung, and was cancelled. pull:
    what is known of the pull that it directs. prompt_tokens and cached_tokens: as the engine's answer
    reported them, looked at only where it pulls.
    """

    exchange: ExchangeRecord
    leg: Leg
    started_s: float
    attempts: int = 0
    status: int | None = None
    error: str | None = None
    started: bool = False
    refused: bool = False
    rescued: bool = False
    pull: PullRecord | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    head_s: float | None = None
    first_byte_s: float | None = None
    ended_s: float | None = None


@dataclass(slots=True, kw_only=True)
class PullRecord:
    """One pull, told once it is known what it moved, which may be after its exchange has ended.

    source: the peer's P2P endpoint; engine: who was told to pull. outcome: None until it is known.
    moved_bytes and moved_tokens: None where they cannot be attributed. saved_s: an estimate, the prefill that
    these tokens would have taken. local: it moved nothing since the engine had a prefix itself. rescued: it
    hung and was left out. source_says: what the source's own counters say of it, None until that is known
    (or for ever, where nobody looks). context: tracing's own.
    """

    source: Endpoint
    engine: Endpoint
    kv_request_id: str
    role: Role
    request_id: str
    trace_id: str | None
    started_s: float
    first_byte_s: float | None = None
    ended_s: float | None = None
    outcome: Outcome | None = None
    moved_bytes: int | None = None
    moved_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    saved_s: float | None = None
    local: bool = False
    rescued: bool = False
    source_says: Says | None = None
    context: object = None


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One request on the wire for a leg. headers: what will be sent; an observer may add to them."""

    leg: LegRecord
    headers: list[tuple[bytes, bytes]]
    started_s: float
    status: int | None = None
    error: str | None = None
