"""The plan of `sglang`, played (contract section 5)."""

from __future__ import annotations

import json

import pytest

from sidecar.connectors import Options, sglang
from sidecar.endpoint import Endpoint
from sidecar.plan import Deliver, Leg, Peer, Role, Start
from tests.connectors.play import (
    DECODER,
    OPTIONS,
    PREFILLER,
    SOURCE,
    call_of,
    fresh_ids,
    play,
    route_of,
)

CLIENT = b'{"model":"m","prompt":"hi", "stream":true,"max_tokens":50,"min_tokens":3}'


def test_both_legs_get_the_whole_body_and_the_same_room_at_once() -> None:
    ids = fresh_ids()
    played = play(sglang.plan(call_of(CLIENT, ids=ids), route_of(), OPTIONS))
    content = (
        b'{"model":"m","prompt":"hi","stream":true,"max_tokens":50,"min_tokens":3,'
        b'"bootstrap_host":"10.0.0.3","bootstrap_port":8998,"bootstrap_room":%d}' % ids.number
    )
    headers = ((b"x-request-id", ids.request.encode()),)
    prefill, decode = [
        Leg(role, target, b"POST", b"/v1/completions", headers, content, room=ids.number)
        for role, target in ((Role.PREFILL, PREFILLER.endpoint), (Role.DECODE, DECODER))
    ]
    assert played.steps == [Start(prefill)]
    assert played.end == Deliver(decode)


def test_the_room_is_the_requests_own_number_and_the_port_the_settings() -> None:
    ids = fresh_ids()
    played = play(sglang.plan(call_of(CLIENT, ids=ids), route_of(), Options(sglang_bootstrap_port=30001)))
    for leg in played.legs:
        sent = json.loads(leg.content or b"")
        assert (sent["bootstrap_port"], sent["bootstrap_room"]) == (30001, ids.number)
        assert 0 <= sent["bootstrap_room"] < 2**63


def test_an_ipv6_prefiller_is_named_without_brackets() -> None:
    prefiller = Peer(Endpoint.parse("[FD00::3]:8002"), 7777)
    played = play(sglang.plan(call_of(b"{}"), route_of(prefiller=prefiller), OPTIONS))
    assert [json.loads(leg.content or b"")["bootstrap_host"] for leg in played.legs] == ["fd00::3"] * 2
    assert played.legs[0].target.netloc == "[fd00::3]:8002"


def test_ranks_that_a_picker_chose_stay_as_they_are_spelled_and_0_is_one() -> None:
    ranks = b'"routed_dp_rank":0,"disagg_prefill_dp_rank": 3'
    played = play(
        sglang.plan(call_of(b'{"text":"hi",' + ranks + b"}", "sglang_generate"), route_of(), OPTIONS)
    )
    for leg in played.legs:
        assert (leg.content or b"").startswith(
            b'{"text":"hi","routed_dp_rank":0,"disagg_prefill_dp_rank":3,"bootstrap_host"'
        )


@pytest.mark.parametrize(
    ("api", "raw"),
    [
        ("completions", b'{"prompt":["a","b"],"n":2}'),
        ("sglang_generate", b'{"text":["a","b"],"sampling_params":[{"n":1},{"n":1}]}'),
        ("sglang_generate", b'{"input_ids":[[1,2],[3]]}'),
    ],
)
def test_a_body_of_many_prompts_has_one_room_that_the_engines_count_on_from(api: str, raw: bytes) -> None:
    ids = fresh_ids()
    played = play(sglang.plan(call_of(raw, api, ids=ids), route_of(), OPTIONS))
    expected = (
        raw[:-1] + b',"bootstrap_host":"10.0.0.3","bootstrap_port":8998,"bootstrap_room":%d}' % ids.number
    )
    assert [leg.content for leg in played.legs] == [expected, expected]


def test_a_clients_own_meeting_is_replaced_where_it_stands() -> None:
    raw = b'{"bootstrap_host":"evil","bootstrap_port":1,"bootstrap_room":7,"text":"hi"}'
    ids = fresh_ids()
    played = play(sglang.plan(call_of(raw, "sglang_generate", ids=ids), route_of(), OPTIONS))
    expected = (
        b'{"bootstrap_host":"10.0.0.3","bootstrap_port":8998,"bootstrap_room":%d,"text":"hi"}' % ids.number
    )
    assert [leg.content for leg in played.legs] == [expected, expected]


def test_a_source_is_not_pulled_from() -> None:
    ids = fresh_ids()
    plain = play(sglang.plan(call_of(CLIENT, ids=ids), route_of(), OPTIONS))
    assert play(sglang.plan(call_of(CLIENT, ids=ids), route_of(source=SOURCE), OPTIONS)) == plain
