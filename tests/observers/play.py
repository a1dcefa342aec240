"""Plays exchanges to the tracing observer in the order in which the program enters observers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Sampler

from sidecar.api import APIS
from sidecar.endpoint import Endpoint
from sidecar.headers import Headers
from sidecar.observers.records import Attempt, ExchangeRecord, LegRecord
from sidecar.observers.spans import Setting
from sidecar.observers.tracing import Tracing
from sidecar.plan import Leg, Peer, Role
from sidecar.routing import Route

CHAT = APIS[0]
DECODER = Endpoint("localhost", 8200)
PREFILLER = Peer(Endpoint("10.0.0.7", 8000), 7777)
SOURCE = Peer(Endpoint("10.0.0.9", 8000), 7777)


@dataclass(frozen=True, slots=True)
class Node:
    """One exported span with the spans inside it, in the order of their starts. status: code, description."""

    name: str
    kind: str
    attributes: dict[str, Any]
    status: tuple[str, str | None] = ("UNSET", None)
    inside: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """A tracing observer over spans kept in memory."""

    tracing: Tracing
    exported: InMemorySpanExporter

    def trees(self) -> list[Node]:
        """What was exported, as trees from their roots here."""
        found = sorted(self.exported.get_finished_spans(), key=lambda span: span.start_time or 0)
        ids = {span.context.span_id for span in found if span.context}
        return [_node(span, found) for span in found if not span.parent or span.parent.span_id not in ids]


def stage(sampler: Sampler = DEFAULT_ON, **options: Any) -> Stage:
    """A stage whose sidecar runs the nixlv2 connector."""
    exported = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return Stage(Tracing(provider, Setting("nixlv2", **options)), exported)


def chat(route: Route | None, *headers: tuple[bytes, bytes], **fields: Any) -> ExchangeRecord:
    """A chat completion whose head was read at 100 s."""
    told: dict[str, Any] = {
        "method": "POST",
        "path": "/v1/chat/completions",
        "api": CHAT,
        "request_id": "r-1",
    }
    return ExchangeRecord(
        **(told | {"request_headers": headers, "route": route, "started_s": 100.0} | fields)
    )


def leg(exchange: ExchangeRecord, role: Role, started_s: float, headers: Headers = ()) -> LegRecord:
    """The exchange's next leg."""
    target = PREFILLER.endpoint if role is Role.PREFILL else DECODER
    path = exchange.path.encode() + b"?secret=1"
    record = LegRecord(
        exchange=exchange,
        leg=Leg(role, target, exchange.method.encode(), path, headers, b"{}"),
        started_s=started_s,
    )
    exchange.legs.append(record)
    return record


def attempt(record: LegRecord) -> Attempt:
    """The leg's next attempt, with a Host before the leg's headers as they go out."""
    record.attempts += 1
    headers = [(b"Host", record.leg.target.netloc.encode()), *record.leg.headers]
    return Attempt(leg=record, headers=headers, started_s=record.started_s)


@dataclass(slots=True)
class Answer:
    """How a leg goes that gets an answer at its first attempt. raised: what reading the answer ends with."""

    status: int
    ended_s: float
    raised: Exception | None = None
    sent: list[tuple[bytes, bytes]] = field(default_factory=list)

    def to(self, stage: Stage, record: LegRecord) -> None:
        """Play the leg."""
        with stage.tracing.leg(record):
            tried = attempt(record)
            with stage.tracing.attempt(tried):
                self.sent = list(tried.headers)
                tried.status = record.status = self.status
            record.ended_s = self.ended_s
            if self.raised:
                raise self.raised


def _node(span: ReadableSpan, found: list[ReadableSpan]) -> Node:
    assert span.context is not None
    children = [child for child in found if child.parent and child.parent.span_id == span.context.span_id]
    return Node(
        span.name,
        span.kind.name,
        dict(span.attributes or {}),
        (span.status.status_code.name, span.status.description),
        tuple(_node(child, found) for child in children),
    )
