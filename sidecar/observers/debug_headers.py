"""Says in headers of an answer what was done for it, as far as that is known when its head leaves.

Rule: pure, from the records alone; the clock is handed in. Values are dictionaries and items of RFC 9651, and
`server-timing` as the W3C's Server Timing has it: durations in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sidecar import headers as names
from sidecar.headers import Headers
from sidecar.observers.records import ExchangeRecord, LegRecord
from sidecar.plan import Role
from sidecar.routing import Route

Span = tuple[float, float]


def debug_headers(record: ExchangeRecord, clock: Callable[[], float]) -> Headers:
    """`server-timing`, `x-sidecar-route` and `x-sidecar-pull`; no route where none has been read."""
    told = [(names.SERVER_TIMING, ", ".join(_timings(record, clock())))]
    if record.route:
        told.append((names.TOLD_ROUTE, ", ".join(_route(record, record.route))))
    told.append((names.TOLD_PULL, _pull(record)))
    return tuple((name, value.encode("latin-1")) for name, value in told)


def _timings(record: ExchangeRecord, now_s: float) -> Iterator[str]:
    """One entry per role, whose legs count as one; what no leg took is the sidecar's own time."""
    for role in Role:
        spans = [_span(leg, now_s) for leg in record.legs if leg.leg.role is role]
        if spans:
            yield _timing(role, max(end for _, end in spans) - min(start for start, _ in spans))
    for leg in record.legs:
        if leg.leg.pull:
            until_s = leg.first_byte_s or leg.ended_s or now_s
            yield f'{_timing("pull", until_s - leg.started_s)};desc="{leg.leg.role} until its answer began"'
    whole_s = now_s - record.started_s
    yield _timing("sidecar", whole_s - _covered_s([_span(leg, now_s) for leg in record.legs]))
    yield _timing("total", whole_s)


def _timing(name: str, duration_s: float) -> str:
    return f"{name};dur={max(0.0, duration_s) * 1000:.3f}"


def _span(leg: LegRecord, now_s: float) -> Span:
    return leg.started_s, leg.ended_s or now_s


def _covered_s(spans: list[Span]) -> float:
    """How long at least one of them lasted."""
    covered_s, reached_s = 0.0, 0.0
    for start_s, end_s in sorted(spans):
        covered_s += max(0.0, end_s - max(start_s, reached_s))
        reached_s = max(reached_s, end_s)
    return covered_s


def _route(record: ExchangeRecord, route: Route) -> Iterator[str]:
    """Who was asked, in the order of the legs; then who was named and why it came otherwise."""
    for leg in record.legs:
        yield f'{leg.leg.role}="{leg.leg.target.netloc}"'
    if route.prefiller and not any(leg.leg.role is Role.PREFILL for leg in record.legs):
        yield f'named-prefiller="{route.prefiller.endpoint.netloc}"'
    if reason := record.alone or record.handoff_lost:
        yield f"reason={reason}"


def _pull(record: ExchangeRecord) -> str:
    """`directed` by which leg, `skipped` for which reason, or `none`: no source was named."""
    for leg in reversed(record.legs):
        if pull := leg.leg.pull:
            source = f'source="{pull.source.p2p.netloc}"'
            return f'directed;leg={leg.leg.role};{source};kv-request-id="{pull.kv_request_id}"'
    route = record.route
    if route is None or route.no_pull is None:
        return "none"
    named = f';source="{route.named_source.netloc}"' if route.named_source else ""
    return f"skipped;reason={route.no_pull}{named}"
