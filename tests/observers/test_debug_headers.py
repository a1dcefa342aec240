"""What an answer tells of itself: whole headers of played exchanges."""

from __future__ import annotations

from dataclasses import replace

from sidecar.observers.debug_headers import debug_headers
from sidecar.observers.records import ExchangeRecord
from sidecar.plan import Pull, Role
from sidecar.routing import NoPull, Route
from tests.observers.play import DECODER, PREFILLER, SOURCE, chat, leg


def told(record: ExchangeRecord, now_s: float) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in debug_headers(record, lambda: now_s)}


def test_a_handoff_with_a_pull_on_its_prefill_leg() -> None:
    record = chat(Route(DECODER, PREFILLER, 1, SOURCE, SOURCE.endpoint))
    prefill = leg(record, Role.PREFILL, 100.002)
    prefill.leg = replace(prefill.leg, pull=Pull(SOURCE, "kv-1"))
    prefill.first_byte_s, prefill.ended_s = 100.09, 100.102
    leg(record, Role.DECODE, 100.103)

    assert told(record, 100.15) == {
        "server-timing": "prefill;dur=100.000, decode;dur=47.000, "
        'pull;dur=88.000;desc="prefill until its answer began", sidecar;dur=3.000, total;dur=150.000',
        "x-sidecar-route": 'prefill="10.0.0.7:8000", decode="localhost:8200"',
        "x-sidecar-pull": 'directed;leg=prefill;source="10.0.0.9:7777";kv-request-id="kv-1"',
    }


def test_legs_side_by_side_are_no_time_of_the_sidecar() -> None:
    record = chat(Route(DECODER, PREFILLER, 1))
    leg(record, Role.PREFILL, 100.0).ended_s = 100.06
    leg(record, Role.DECODE, 100.01)

    timing = told(record, 100.1)["server-timing"]
    assert timing == "prefill;dur=60.000, decode;dur=90.000, sidecar;dur=0.000, total;dur=100.000"


def test_a_pull_that_was_skipped_is_told_with_its_reason_and_source() -> None:
    record = chat(Route(DECODER, named_source=SOURCE.endpoint, no_pull=NoPull.UNREACHABLE))
    leg(record, Role.DECODE, 100.05)

    assert told(record, 100.1)["x-sidecar-pull"] == 'skipped;reason=source_unreachable;source="10.0.0.9:8000"'


def test_a_prefiller_that_was_not_asked_is_told_with_the_reason() -> None:
    record = chat(Route(DECODER, PREFILLER, 1), alone="several_prompts")
    leg(record, Role.DECODE, 100.0)

    route = told(record, 100.1)["x-sidecar-route"]
    assert route == 'decode="localhost:8200", named-prefiller="10.0.0.7:8000", reason=several_prompts'


def test_a_request_that_was_refused_before_its_route_was_read_tells_only_what_is_known() -> None:
    assert told(chat(None), 100.001) == {
        "server-timing": "sidecar;dur=1.000, total;dur=1.000",
        "x-sidecar-pull": "none",
    }
