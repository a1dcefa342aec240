"""The plans of MoRI-IO, played (contract sections 5 and 11)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sidecar.connectors import CONNECTORS, Options, moriio
from sidecar.connectors.options import MoRIIO
from sidecar.endpoint import Endpoint
from sidecar.errors import LegRefused
from sidecar.plan import Ask, Deliver, Leg, Peer, Reply, Role, Start
from tests.connectors.play import (
    DECODER,
    PREFILLER,
    SOURCE,
    Played,
    call_of,
    fresh_ids,
    legs_of,
    play,
    reply_of,
    route_of,
)

CLIENT = b'{"model":"m","prompt":"hi", "stream":true,"max_tokens":50,"min_tokens":3}'
RID = b"r-7"
RID_HEADER = ((b"x-request-id", RID),)
# What vLLM's moriio_connector answers for a prefill (`request_finished`), with a key of tomorrow and odd
# spacing. It has no remote_port.
PARAMS = (
    b'{"do_remote_prefill":true, "do_remote_decode":false,"remote_block_ids":[9, 10],'
    b'"remote_engine_id":"10.0.0.3:6301","remote_host":"10.0.0.3","remote_handshake_port":6301,'
    b'"remote_notify_port":61005,"remote_dp_size":1,"tp_size":1,"transfer_id":"tx-p",'
    b'"later" : {"zebra":1.0, "apple":12345678901234567890}}'
)
USAGE = b'"usage":{"prompt_tokens_details":{"cached_tokens":96}}'

PODS = MoRIIO(
    local_pod_ip="10.0.0.1",
    decode_notify_port=61001,
    decode_handshake_port=6001,
    prefill_notify_port=61002,
    prefill_handshake_port=6002,
)
# Two pods a side with eight ranks each.
WIDE = replace(
    PODS,
    tp_size=2,
    dp_size=16,
    dp_size_local=8,
    remote_hosts=("10.0.1.1", "10.0.1.2"),
    decode_hosts=("10.0.2.1", "10.0.2.2"),
)


def answer(params: bytes | None) -> Reply:
    field = b"" if params is None else b',"kv_transfer_params":' + params
    return reply_of(b'{"id":"cmpl-9",' + USAGE + field + b"}")


def serial(pods: MoRIIO, params: bytes | None = PARAMS, rid: bytes = RID, **route: Any) -> Played:
    call = call_of(CLIENT, headers=((b"x-request-id", rid),), ids=replace(fresh_ids(), handoff="H", pull="P"))
    return play(moriio.plan(call, route_of(**route), Options(moriio=pods)), answer(params))


def parallel(pods: MoRIIO, rid: bytes = RID, **route: Any) -> Played:
    call = call_of(CLIENT, headers=((b"x-request-id", rid),), ids=replace(fresh_ids(), handoff="H", pull="P"))
    options = Options(moriio=replace(pods, parallel_dispatch=True))
    return play(moriio.plan(call, route_of(**route), options))


def params_of(leg: Leg) -> Any:
    return json.loads(leg.content or b"")["kv_transfer_params"]


def rank_header(leg: Leg) -> list[bytes]:
    return [value for name, value in leg.headers if name.lower() == b"x-data-parallel-rank"]


def prefill_body(*more: bytes) -> bytes:
    """The whole body of a prefill leg, with these texts in the middle of its params."""
    return (
        b'{"model":"m","prompt":"hi","stream":false,"max_tokens":1,"kv_transfer_params":{'
        b'"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
        b'"remote_host":"10.0.0.1","remote_port":null,"remote_notify_port":61001,'
        b'"remote_handshake_port":6001,' + b",".join(more) + b"}}"
    )


NARROW_BODY = (
    b'"remote_dp_rank":0,"remote_dp_rank_override":true,"transfer_id":"txH","tp_size":1,"remote_dp_size":1'
)
# blake2s-256("r-7") begins with 5e115ab4e85b3dad, mod 16 is 13: rank 5 of the second pod.
R = 13
WIDE_BODY = (
    b'"remote_dp_rank":%d,"remote_dp_rank_override":true,"transfer_id":"txH","tp_size":2,"remote_dp_size":16'
)


def test_serial_prefill_then_decode_with_the_answers_params_whole() -> None:
    played = serial(PODS)
    prefill = Leg(
        Role.PREFILL, PREFILLER.endpoint, b"POST", b"/v1/completions", RID_HEADER, prefill_body(NARROW_BODY)
    )
    decode = Leg(
        Role.DECODE,
        DECODER,
        b"POST",
        b"/v1/completions",
        RID_HEADER,
        b'{"model":"m","prompt":"hi","stream":true,"max_tokens":50,"min_tokens":3,"kv_transfer_params":'
        b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[9, 10],'
        b'"remote_engine_id":"10.0.0.3:6301","remote_host":"10.0.0.3","remote_handshake_port":6301,'
        b'"remote_notify_port":61005,"remote_dp_size":1,"tp_size":1,"transfer_id":"tx-p",'
        b'"later":{"zebra":1.0, "apple":12345678901234567890},'
        b'"remote_dp_rank":0,"remote_dp_rank_override":true}}',
    )
    assert played.steps == [Ask((prefill,))]
    assert played.deliver == Deliver(decode, cached_tokens=96)


def test_parallel_prefill_and_decode_are_both_made_of_the_flags() -> None:
    played = parallel(PODS)
    prefill = Leg(
        Role.PREFILL,
        PREFILLER.endpoint,
        b"POST",
        b"/v1/completions",
        RID_HEADER,
        prefill_body(NARROW_BODY),
        timeout_s=30.0,
    )
    decode = Leg(
        Role.DECODE,
        DECODER,
        b"POST",
        b"/v1/completions",
        RID_HEADER,
        b'{"model":"m","prompt":"hi","stream":true,"max_tokens":50,"min_tokens":3,"kv_transfer_params":'
        b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"10.0.0.3:6002",'
        b'"remote_block_ids":[],"remote_host":"10.0.0.3","remote_port":6002,"remote_notify_port":61002,'
        b'"remote_handshake_port":6002,' + NARROW_BODY + b"}}",
    )
    assert played.steps == [Start(prefill)]
    assert played.deliver == Deliver(decode, after_started=True)


def test_several_pods_are_named_to_the_other_side_with_the_rank_and_its_pods_count_of_it() -> None:
    shared = WIDE_BODY % R
    prefill_params = shared + b',"remote_hosts":["10.0.2.1","10.0.2.2"],"remote_dp_size_local":8'
    decode_params = {
        **params_of(parallel(PODS).deliver.leg),
        **json.loads(b"{" + shared + b"}"),
        "remote_hosts": ["10.0.1.1", "10.0.1.2"],
        "remote_dp_size_local": 8,
    }
    serial_prefill, serial_decode = serial(WIDE).legs
    prefill, decode = parallel(WIDE).legs
    assert prefill.content == serial_prefill.content == prefill_body(prefill_params)
    assert params_of(decode) == decode_params
    # What the prefiller said of itself stands; what it left out is filled in.
    assert params_of(serial_decode) == {
        **json.loads(PARAMS),
        "remote_hosts": ["10.0.1.1", "10.0.1.2"],
        "remote_dp_size_local": 8,
        "remote_dp_rank": R,
        "remote_dp_rank_override": True,
    }
    assert [rank_header(leg) for leg in (serial_prefill, serial_decode, prefill, decode)] == [[b"5"]] * 4


def test_one_host_without_a_local_size_is_named_alone() -> None:
    pods = replace(PODS, remote_hosts=("10.0.1.1",), decode_hosts=("10.0.2.1",))
    prefill, decode = parallel(pods).legs
    assert params_of(prefill)["remote_hosts"] == ["10.0.2.1"]
    assert params_of(decode)["remote_hosts"] == ["10.0.1.1"]
    assert params_of(serial(pods).deliver.leg)["remote_hosts"] == ["10.0.1.1"]
    for leg in (prefill, decode, serial(pods).deliver.leg):
        assert "remote_dp_size_local" not in params_of(leg)


def test_an_ipv6_prefiller_is_named_without_brackets() -> None:
    prefiller = Peer(Endpoint.parse("[fd00::3]:8000"), 7777)
    params = params_of(parallel(replace(PODS, local_pod_ip="fd00::1"), prefiller=prefiller).deliver.leg)
    assert (params["remote_host"], params["remote_engine_id"]) == ("fd00::3", "fd00::3:6002")
    prefill = serial(replace(PODS, local_pod_ip="fd00::1"), prefiller=prefiller).legs[0]
    assert params_of(prefill)["remote_host"] == "fd00::1"
    assert prefill.target.netloc == "[fd00::3]:8000"


@pytest.mark.parametrize(
    ("request_id", "dp_size", "rank"),
    [
        # The digests of "" and of RFC 7693 appendix B ("abc").
        (RID, 16, R),
        (b"", 1000, 0x69217A3079908094 % 1000),
        (b"abc", 1000, 0x508C5E8C327C14E2 % 1000),
        (b"abc", 2, 0),
        (b"abc", 1, 0),
    ],
)
def test_the_rank_is_the_first_eight_bytes_of_blake2s_256_of_the_request_id(
    request_id: bytes, dp_size: int, rank: int
) -> None:
    assert moriio.rank_of(request_id, dp_size) == rank


def test_ranks_spread_over_all_engines() -> None:
    assert {moriio.rank_of(b"request-%d" % n, 16) for n in range(400)} == set(range(16))


@pytest.mark.parametrize("sent", [(), ((b"X-Request-Id", b"rid-7"),), ((b"x-request-id", b""),)])
def test_the_rank_is_that_of_the_request_id_which_both_legs_carry(
    sent: tuple[tuple[bytes, bytes], ...],
) -> None:
    for together in (False, True):
        options = Options(moriio=replace(WIDE, parallel_dispatch=together))
        plan = moriio.plan(call_of(CLIENT, headers=sent), route_of(), options)
        legs = play(plan, *([] if together else [answer(PARAMS)])).legs
        ids = {value for leg in legs for name, value in leg.headers if name.lower() == b"x-request-id"}
        [request_id] = ids
        assert {params_of(leg)["remote_dp_rank"] for leg in legs} == {moriio.rank_of(request_id, 16)}


@pytest.mark.parametrize("together", [False, True])
def test_a_clients_rank_is_replaced_and_one_engine_needs_none(*, together: bool) -> None:
    headers = ((b"X-Data-Parallel-Rank", b"5"), (b"x-data-parallel-rank", b"6"))
    options = Options(moriio=replace(WIDE, parallel_dispatch=together))
    replies = [] if together else [answer(PARAMS)]
    legs = play(moriio.plan(call_of(CLIENT, headers=headers), route_of(), options), *replies).legs
    for leg in legs:
        assert rank_header(leg) == [b"%d" % (params_of(leg)["remote_dp_rank"] % 8)]
    one = Options(moriio=replace(PODS, parallel_dispatch=together))
    legs = play(moriio.plan(call_of(CLIENT), route_of(), one), *replies).legs
    assert [rank_header(leg) for leg in legs] == [[], []]


@pytest.mark.parametrize(
    ("said", "rank"),
    [
        (b"0", 0),
        (b"11", 11),
        (b"15", 15),
        (b"11.0", 11),
        (b"16", R),
        (b"-1", R),
        (b"1.5", R),
        (b"1e400", R),
        (b"12345678901234567890", R),
        (b'"3"', R),
        (b"true", R),
        (b"null", R),
        (b"[1]", R),
        (None, R),
    ],
)
def test_serial_decode_goes_to_the_rank_that_the_prefiller_ran_on_if_it_names_one(
    said: bytes | None, rank: int
) -> None:
    params = PARAMS if said is None else PARAMS[:-1] + b',"remote_dp_rank":' + said + b"}"
    decode = serial(WIDE, params).deliver.leg
    sent = params_of(decode)
    assert (sent["remote_dp_rank"], type(sent["remote_dp_rank"])) == (rank, int)
    assert sent["remote_dp_rank_override"] is True
    assert rank_header(decode) == [b"%d" % (rank % 8)]


def test_without_a_local_size_the_header_is_the_rank() -> None:
    pods = replace(PODS, dp_size=16)
    legs = serial(pods, PARAMS[:-1] + b',"remote_dp_rank":11}').legs
    assert [rank_header(leg) for leg in legs] == [[b"13"], [b"11"]]
    assert [params_of(leg)["remote_dp_rank"] for leg in legs] == [R, 11]


FILLED = {
    "transfer_id": "txH",
    "remote_notify_port": 61002,
    "remote_handshake_port": 6002,
    "remote_dp_size": 16,
    "remote_hosts": ["10.0.1.1", "10.0.1.2"],
    "remote_dp_size_local": 8,
}


OWN = {
    "transfer_id": "tx-own",
    "remote_notify_port": 7,
    "remote_handshake_port": 7,
    "remote_dp_size": 12,
    "remote_hosts": ["own"],
    "remote_dp_size_local": 4,
}


@pytest.mark.parametrize("field", FILLED)
def test_what_the_prefiller_left_out_is_filled_in_and_what_it_said_stands(field: str) -> None:
    said = {**FILLED, "remote_dp_rank": 3, field: OWN[field]}
    without = {key: value for key, value in said.items() if key != field}
    for answered, expected in (
        (said, OWN[field]),
        (without, FILLED[field]),
        ({**said, field: None}, FILLED[field]),
    ):
        decode = serial(WIDE, json.dumps(answered).encode()).deliver.leg
        assert params_of(decode) == {**said, field: expected, "remote_dp_rank_override": True}


def test_the_transfer_has_one_id_for_both_engines_and_another_for_each_request() -> None:
    seen = []
    for together in (False, True):
        options = Options(moriio=replace(PODS, parallel_dispatch=together))
        for _ in range(2):
            replies = [] if together else [answer(b"{}")]
            legs = play(moriio.plan(call_of(CLIENT), route_of(), options), *replies).legs
            [transfer_id] = {params_of(leg)["transfer_id"] for leg in legs}
            assert transfer_id.startswith("tx")
            seen.append(transfer_id)
    assert len(set(seen)) == 4


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (None, "prefill_without_kv_transfer_params"),
        (b"null", "prefill_without_kv_transfer_params"),
        (b'"abc"', "prefill_with_incomplete_kv_transfer_params"),
        (b"[]", "prefill_with_incomplete_kv_transfer_params"),
        (b"9", "prefill_with_incomplete_kv_transfer_params"),
        *[
            (b'{"remote_dp_rank":3,%b}' % field, "prefill_with_incomplete_kv_transfer_params")
            for field in (
                *(b'"remote_host":""', b'"remote_host":"a b"', b'"remote_host":7'),
                *(b'"remote_notify_port":%b' % port for port in (b'"x"', b"0", b"-1", b"65536", b"true")),
                *(b'"remote_handshake_port":"6301"', b'"remote_hosts":"h"', b'"transfer_id":7'),
            )
        ],
    ],
)
def test_an_answer_without_params_is_reported_and_decode_goes_on_without(
    params: bytes | None, reason: str
) -> None:
    end = serial(WIDE, params).deliver
    assert end.leg.content == CLIENT
    assert (end.handoff_lost, end.cached_tokens, rank_header(end.leg)) == (reason, 96, [b"%d" % (R % 8)])


def test_params_that_would_be_incomplete_elsewhere_are_completed() -> None:
    end = serial(PODS, b'{"do_remote_prefill":true,"remote_host":"10.0.0.3"}').deliver
    assert end.handoff_lost is None
    assert params_of(end.leg) == {
        "do_remote_prefill": True,
        "remote_host": "10.0.0.3",
        "transfer_id": "txH",
        "remote_notify_port": 61002,
        "remote_handshake_port": 6002,
        "remote_dp_size": 1,
        "remote_dp_rank": 0,
        "remote_dp_rank_override": True,
    }


@pytest.mark.parametrize("together", [False, True])
def test_a_pull_goes_on_the_prefill_leg_and_never_to_the_decoder(*, together: bool) -> None:
    played = parallel(PODS, source=SOURCE) if together else serial(PODS, source=SOURCE)
    prefill, decode = played.legs
    pull = b'"remote_kv_source":{"kv_request_id":"P","remote_host":"10.0.0.2","remote_port":7778}'
    assert prefill.content == prefill_body(NARROW_BODY, pull)
    assert prefill.pull is not None
    assert prefill.pull.source == SOURCE
    assert decode.pull is None
    assert b"remote_kv_source" not in (decode.content or b"")


def test_the_clients_own_params_reach_no_engine() -> None:
    raw = CLIENT[:-1] + b',"kv_transfer_params":{"evil":1},"vllm_xargs":{"kv_transfer_params":{"evil":1}}}'
    for together in (False, True):
        options = Options(moriio=replace(PODS, parallel_dispatch=together))
        replies = [] if together else [answer(PARAMS)]
        for leg in play(moriio.plan(call_of(raw), route_of(), options), *replies).legs:
            assert b"evil" not in (leg.content or b"")


def test_the_wait_for_a_prefill_is_the_flags() -> None:
    pods = replace(PODS, parallel_decode_wait_timeout_s=1.5)
    prefill, decode = parallel(pods).legs
    assert (prefill.timeout_s, decode.timeout_s) == (1.5, None)
    assert [leg.timeout_s for leg in serial(pods).legs] == [None, None]


def test_a_failed_prefill_ends_the_serial_plan() -> None:
    plan = moriio.plan(call_of(CLIENT), route_of(), Options(moriio=PODS))
    leg = legs_of(next(plan))[0]
    refusal = LegRefused(leg, Reply(404, b"Not Found", (), b"{}", reply_of(b"{}").body))
    with pytest.raises(LegRefused) as raised:
        plan.throw(refusal)
    assert raised.value is refusal


def test_it_has_a_row_and_pulls_where_a_flag_says_so() -> None:
    assert (CONNECTORS["moriio"].plan, CONNECTORS["moriio"].pulls) == (moriio.plan, None)
