"""The ring: what is remembered of exchanges, for how many, and pulls that are settled later."""

from __future__ import annotations

import json
from dataclasses import replace
from time import monotonic
from typing import Any

from sidecar.evidence import Outcome
from sidecar.giving import Says
from sidecar.observers.records import ExchangeRecord, PullRecord
from sidecar.observers.ring import OUTCOMES, Ring
from sidecar.plan import Pull, Role
from sidecar.routing import NoPull, Route
from tests.observers.play import DECODER, SOURCE, chat, leg

HEADERS = ((b"authorization", b"Bearer secret"), (b"cookie", b"secret"))
PULLED = Route(DECODER, source=SOURCE, named_source=SOURCE.endpoint)


def pulling(number: int = 1) -> tuple[ExchangeRecord, PullRecord]:
    """An exchange whose decode leg directs a pull that is not settled."""
    now_s = monotonic()
    record = chat(PULLED, *HEADERS, started_s=now_s, status=200, first_byte_s=now_s + 0.5, ended_s=now_s + 1)
    decode = leg(record, Role.DECODE, now_s + 0.001)
    decode.leg = replace(decode.leg, pull=Pull(SOURCE, f"kv-{number}"), content=b'{"prompt":"secret"}')
    decode.status, decode.attempts, decode.ended_s = 200, 1, now_s + 1
    decode.head_s, decode.first_byte_s = now_s + 0.4, now_s + 0.5
    decode.pull = PullRecord(
        source=SOURCE.p2p,
        engine=DECODER,
        kv_request_id=f"kv-{number}",
        role=Role.DECODE,
        request_id="r-1",
        trace_id=None,
        started_s=decode.started_s,
    )
    return record, decode.pull


def keep(ring: Ring, record: ExchangeRecord) -> None:
    with ring.exchange(record):
        pass
    record.legs.clear()  # as the exchange does


def settle(pull: PullRecord) -> PullRecord:
    pull.outcome, pull.moved_bytes, pull.moved_tokens = Outcome.MOVED, 4096, 160
    pull.prompt_tokens, pull.cached_tokens, pull.saved_s = 161, 160, 0.25
    return pull


SETTLED = {
    "outcome": "moved",
    "moved_bytes": 4096,
    "moved_tokens": 160,
    "prompt_tokens": 161,
    "cached_tokens": 160,
    "avoided_prefill_estimate_ms": 250.0,
    "engine_had_it": False,
    "source_says": None,
}


def test_an_exchange_is_remembered_with_its_legs_and_completed_when_its_pull_is_settled() -> None:
    ring = Ring(8)
    record, pull = pulling()
    keep(ring, record)

    [told] = ring.since()
    before: dict[str, Any] = json.loads(json.dumps(told))
    assert (before.pop("at")[-1], before["outcome"]) == ("Z", "pending")
    assert before["legs"][0]["pull"]["outcome"] == "pending"
    version = ring.version
    ring.pull(settle(pull))
    [after] = ring.since(version)
    assert {key: after[key] for key in before} == {
        "number": 1,
        "outcome": "moved",
        "method": "POST",
        "path": "/v1/chat/completions",
        "api": "chat_completions",
        "status": 200,
        "request_id": "r-1",
        "duration_ms": 1000.0,
        "ttfb_ms": 500.0,
        "sent_bytes": 0,
        "streaming": False,
        "source": "10.0.0.9:8000",
        "prefiller": None,
        "legs": [
            {
                "role": "decode",
                "target": "localhost:8200",
                "status": 200,
                "started_ms": 1.0,
                "duration_ms": 999.0,
                "head_ms": 400.0,
                "first_byte_ms": 500.0,
                "pull": {"source": "10.0.0.9:7777", "kv_request_id": "kv-1", **SETTLED},
            }
        ],
    }
    assert ring.since(ring.version) == []


def test_nothing_of_a_body_a_query_or_a_credential_is_remembered() -> None:
    ring = Ring(8)
    record, pull = pulling()
    keep(ring, record)
    ring.pull(settle(pull))
    assert "secret" not in json.dumps(ring.since())


def test_a_pull_that_is_told_before_its_exchange_is_over_is_read_from_its_leg() -> None:
    ring = Ring(8)
    record, pull = pulling()
    ring.pull(settle(pull))
    assert ring.since() == []
    keep(ring, record)
    [told] = ring.since()
    assert told["outcome"] == "moved"
    assert SETTLED.items() <= told["legs"][0]["pull"].items()


def test_what_a_source_says_later_completes_the_entry_again() -> None:
    ring = Ring(8)
    record, pull = pulling()
    keep(ring, record)
    ring.pull(settle(pull))
    version = ring.version
    pull.source_says = Says.CONFIRMED
    ring.source(pull)
    [told] = ring.since(version)
    assert told["outcome"] == "moved"
    assert told["legs"][0]["pull"]["source_says"] == "confirmed"
    assert ring._unsettled == {}


def test_what_a_source_says_in_time_is_told_with_the_rest_and_the_entry_is_complete() -> None:
    ring = Ring(8)
    record, pull = pulling()
    keep(ring, record)
    settle(pull).source_says = Says.NOTHING
    ring.source(pull)
    ring.pull(pull)
    [told] = ring.since()
    assert told["legs"][0]["pull"]["source_says"] == "nothing"
    assert ring._unsettled == {}


def test_the_oldest_goes_first_and_its_pull_is_forgotten_with_it() -> None:
    ring = Ring(2)
    pulls = []
    for number in range(3):
        record, pull = pulling(number)
        keep(ring, record)
        pulls.append(pull)
    assert [told["number"] for told in ring.since()] == [2, 3]
    for pull in pulls:
        ring.pull(settle(pull))
    assert [told["outcome"] for told in ring.since()] == ["moved", "moved"]


def test_exchanges_are_found_by_outcome_the_newest_first() -> None:
    ring = Ring(8)
    unreachable = Route(DECODER, named_source=SOURCE.endpoint, no_pull=NoPull.UNREACHABLE)
    for route in (Route(DECODER), unreachable, Route(DECODER)):
        keep(ring, chat(route, started_s=monotonic(), status=200))
    keep(ring, pulling()[0])

    found = {outcome: [told["number"] for told in ring.of([outcome])] for outcome in OUTCOMES}
    empty: dict[str, list[int]] = {
        outcome: [] for outcome in ("moved", "partial", "nothing", "unknown", "rescued")
    }
    assert found == {"none": [3, 1], "skipped": [2], "pending": [4], **empty}
    assert ring.of(["skipped"])[0]["reason"] == "source_unreachable"


def test_what_is_passed_through_is_not_remembered() -> None:
    ring = Ring(8)
    keep(ring, chat(Route(DECODER), api=None, started_s=monotonic()))
    assert ring.since() == []


def test_two_legs_of_one_request_that_direct_the_same_pull_are_settled_apart() -> None:
    ring = Ring(8)
    record, first = pulling()
    again = leg(record, Role.DECODE, first.started_s + 0.5)
    again.leg = record.legs[0].leg
    again.pull = replace(first, started_s=again.started_s)
    keep(ring, record)
    ring.pull(settle(again.pull))
    [told] = ring.since()
    assert [one["pull"]["outcome"] for one in told["legs"]] == ["pending", "moved"]
    first.outcome = Outcome.NOTHING
    ring.pull(first)
    assert [one["pull"]["outcome"] for one in told["legs"]] == ["nothing", "moved"]
    assert told["outcome"] == "moved"  # the last one's
