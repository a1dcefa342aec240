"""The plan of `nixlv2`, played (contract sections 4 and 5)."""

from __future__ import annotations

import pytest

from sidecar.connectors import nixlv2
from sidecar.errors import EngineUnreachable, LegFailed, LegRefused
from sidecar.plan import Ask, Deliver, Leg, Reply, Role
from tests.connectors.play import (
    DECODER,
    OPTIONS,
    PREFILLER,
    SOURCE,
    call_of,
    fresh_ids,
    legs_of,
    play,
    reply_of,
    route_of,
)

CLIENT = b'{"model":"m","prompt":"hi", "stream":true,"max_tokens":50,"min_tokens":3}'
# As vLLM 0.32 answered, with a key that it does not have yet and spacing of its own.
PARAMS = (
    b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[9, 10]],'
    b'"remote_engine_id":"0b11839b",'
    b'"remote_request_id":"cmpl-9","remote_host":"10.0.0.3","remote_port":18150,"tp_size":1,'
    b'"remote_num_tokens":161,'
    b'"remote_blocks_expiry_time":null,"transfer_mode":"pull",'
    b'"later" : {"zebra":1.0, "apple":12345678901234567890}}'
)
HANDOFF = (
    b'"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
)
HANDOFF += b'"remote_host":null,"remote_port":null'


def answer(params: bytes | None, usage: bytes = b'{"prompt_tokens_details":{"cached_tokens":96}}') -> Reply:
    field = b"" if params is None else b',"kv_transfer_params":' + params
    return reply_of(b'{"id":"cmpl-9","usage":' + usage + field + b"}")


def test_prefill_then_decode_with_what_the_prefiller_answered_whole() -> None:
    ids = fresh_ids()
    played = play(nixlv2.plan(call_of(CLIENT, ids=ids), route_of(), OPTIONS), answer(PARAMS))
    headers = ((b"x-request-id", ids.request.encode()),)
    prefill = Leg(
        Role.PREFILL,
        PREFILLER.endpoint,
        b"POST",
        b"/v1/completions",
        headers,
        b'{"model":"m","prompt":"hi","stream":false,"max_tokens":1,"kv_transfer_params":{' + HANDOFF + b"}}",
    )
    decode = Leg(
        Role.DECODE,
        DECODER,
        b"POST",
        b"/v1/completions",
        headers,
        b'{"model":"m","prompt":"hi","stream":true,"max_tokens":50,"min_tokens":3,"kv_transfer_params":'
        + PARAMS
        + b"}",
    )
    assert played.steps == [Ask((prefill,))]
    assert played.deliver == Deliver(decode, cached_tokens=96)


def test_a_pull_goes_on_the_prefill_leg_and_never_to_the_decoder() -> None:
    ids = fresh_ids()
    played = play(nixlv2.plan(call_of(CLIENT, ids=ids), route_of(source=SOURCE), OPTIONS), answer(PARAMS))
    prefill, decode = played.legs
    pull = b'{"kv_request_id":"%s","remote_host":"10.0.0.2","remote_port":7778}' % ids.pull.encode()
    assert prefill.content == (
        b'{"model":"m","prompt":"hi","stream":false,"max_tokens":1,"kv_transfer_params":{'
        + HANDOFF
        + b',"remote_kv_source":'
        + pull
        + b"}}"
    )
    assert prefill.pull is not None
    assert (prefill.pull.source, prefill.pull.kv_request_id) == (SOURCE, ids.pull)
    assert b"remote_kv_source" not in (decode.content or b"")
    assert decode.pull is None


@pytest.mark.parametrize(
    "params",
    [
        None,
        b"null",
        b'"abc"',
        b"[]",
        b"5",
        b"true",
        b"9" * 5000,
        b'{"do_remote_prefill":true}',
        PARAMS.replace(b'"remote_block_ids":[[9, 10]],', b""),
        PARAMS.replace(b'"remote_block_ids":[[9, 10]]', b'"remote_block_ids":null'),
        *[
            PARAMS.replace(b'"remote_block_ids":[[9, 10]]', b'"remote_block_ids":' + blocks)
            for blocks in (b"[]", b"[[]]", b"[ [], [ ] ]", b"{}", b'"x"', b"true")
        ],
        *[b'{"do_remote_prefill":%b}' % fetches for fetches in (b"1", b'"true"', b"{}")],
        PARAMS.replace(b'"remote_engine_id":"0b11839b",', b""),
        PARAMS.replace(b'"remote_engine_id":"0b11839b"', b'"remote_engine_id": null'),
        PARAMS.replace(b'"remote_engine_id":"0b11839b"', b'"remote_engine_id":7'),
        PARAMS.replace(b'"remote_host":"10.0.0.3",', b""),
        *[
            PARAMS.replace(b'"remote_host":"10.0.0.3"', b'"remote_host":' + host)
            for host in (b'""', b'" "', b'"a b"', b'"http://10.0.0.3"', b'"[fd00::1]"', b"7", b"true", b"[]")
        ],
        *[
            PARAMS.replace(b'"remote_port":18150', b'"remote_port":' + port)
            for port in (b'"x"', b'"18150"', b"0", b"-1", b"65536", b"true", b"18150.0", b"1e999", b"{}")
        ],
        PARAMS.replace(b'"remote_request_id":"cmpl-9"', b'"remote_request_id":9'),
        PARAMS.replace(b'"remote_port":18150,', b""),
        PARAMS.replace(b'"do_remote_prefill":true', b'"do_remote_prefill" : true').replace(
            b'"remote_port":18150,', b""
        ),
    ],
)
def test_a_handoff_that_cannot_be_used_is_reported_and_decode_goes_on_without_it(
    params: bytes | None,
) -> None:
    client = CLIENT[:-1] + b',"kv_transfer_params":{"evil":1}}'
    played = play(nixlv2.plan(call_of(client), route_of(), OPTIONS), answer(params))
    assert played.deliver.leg.content == CLIENT.replace(b" ", b"")
    assert played.deliver.handoff_lost
    assert played.deliver.cached_tokens == 96


def test_a_missing_and_an_incomplete_handoff_are_told_apart() -> None:
    lost = [
        play(nixlv2.plan(call_of(CLIENT), route_of(), OPTIONS), answer(params)).deliver.handoff_lost
        for params in (None, b"null", b'{"do_remote_prefill":true}')
    ]
    assert lost[0] == lost[1] != lost[2]


@pytest.mark.parametrize(
    "params",
    [
        PARAMS.replace(b'"remote_request_id":"cmpl-9",', b""),
        PARAMS.replace(b"true", b"false", 1).replace(b'"remote_port":18150,', b""),
        b'{"later":1.0}',
        PARAMS.replace(b"[[9, 10]]", b"[[], [0]]"),
        PARAMS.replace(b"[[9, 10]]", b"[9, 10]"),
        PARAMS.replace(b"true", b"1", 1),
    ],
    ids=[
        "an older engine's",
        "nothing to fetch",
        "unknown keys only",
        "no blocks of one group",
        "blocks without groups",
        "a flag of another type",
    ],
)
def test_every_other_answer_is_used_whole(params: bytes) -> None:
    played = play(nixlv2.plan(call_of(CLIENT), route_of(), OPTIONS), answer(params))
    assert (played.deliver.leg.content or b"").endswith(b'"kv_transfer_params":' + params + b"}")
    assert played.deliver.handoff_lost is None


@pytest.mark.parametrize(
    ("usage", "cached_tokens"),
    [
        (b"null", 0),
        (b"{}", 0),
        (b'{"prompt_tokens_details":null}', 0),
        (b'{"prompt_tokens_details":{"cached_tokens":null}}', 0),
        (b'{"prompt_tokens_details":{"cached_tokens":7}}', 7),
    ],
)
def test_the_client_is_told_the_prefillers_cached_tokens(usage: bytes, cached_tokens: int) -> None:
    played = play(nixlv2.plan(call_of(CLIENT), route_of(), OPTIONS), answer(PARAMS, usage))
    assert played.deliver.cached_tokens == cached_tokens


def test_the_answer_of_one_request_is_never_used_for_another() -> None:
    first = play(nixlv2.plan(call_of(CLIENT), route_of(), OPTIONS), answer(PARAMS))
    second = play(nixlv2.plan(call_of(CLIENT), route_of(), OPTIONS), answer(None))
    assert PARAMS in (first.deliver.leg.content or b"")
    assert b"kv_transfer_params" not in (second.deliver.leg.content or b"")


def test_a_failed_prefill_ends_the_plan_and_decode_is_never_sent() -> None:
    plan = nixlv2.plan(call_of(CLIENT), route_of(), OPTIONS)
    leg = legs_of(next(plan))[0]
    refusal = LegRefused(leg, Reply(404, b"Not Found", (), b"{}", reply_of(b"{}").body))
    with pytest.raises(LegFailed) as raised:
        plan.throw(refusal)
    assert raised.value is refusal


def test_an_unreachable_prefiller_ends_the_plan_too() -> None:
    plan = nixlv2.plan(call_of(CLIENT), route_of(), OPTIONS)
    leg = legs_of(next(plan))[0]
    with pytest.raises(EngineUnreachable):
        plan.throw(EngineUnreachable(leg, "m"))
