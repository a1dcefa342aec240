"""The plan of `offloading`, played (contract sections 4 and 5)."""

from __future__ import annotations

import pytest

from sidecar.connectors import offloading
from sidecar.endpoint import Endpoint
from sidecar.errors import EngineDied
from sidecar.plan import Ask, Deliver, Leg, Peer, Role
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

CLIENT = b'{"model":"m","prompt":"hi", "stream":true,"max_tokens":50}'
ANSWER = b'{"id":"cmpl-9","usage":{"prompt_tokens_details":{"cached_tokens":96}},"kv_transfer_params":null}'


def test_prefill_under_a_fresh_id_then_decode_fetches_that_id() -> None:
    ids = fresh_ids()
    played = play(offloading.plan(call_of(CLIENT, ids=ids), route_of(), OPTIONS), reply_of(ANSWER))
    headers = ((b"x-request-id", ids.request.encode()),)
    prefill = Leg(
        Role.PREFILL,
        PREFILLER.endpoint,
        b"POST",
        b"/v1/completions",
        headers,
        b'{"model":"m","prompt":"hi","stream":false,"max_tokens":1,'
        b'"kv_transfer_params":{"remote_decoder":{"kv_request_id":"%s"}}}' % ids.handoff.encode(),
    )
    decode = Leg(
        Role.DECODE,
        DECODER,
        b"POST",
        b"/v1/completions",
        headers,
        b'{"model":"m","prompt":"hi","stream":true,"max_tokens":50,"kv_transfer_params":{"remote_prefiller":'
        b'{"kv_request_id":"%s","remote_host":"10.0.0.3","remote_port":7777}}}' % ids.handoff.encode(),
    )
    assert played.steps == [Ask((prefill,))]
    assert played.deliver == Deliver(decode, cached_tokens=96)


def test_a_pull_has_its_own_id_and_goes_on_the_prefill_leg_only() -> None:
    ids = fresh_ids()
    played = play(
        offloading.plan(call_of(CLIENT, ids=ids), route_of(source=SOURCE), OPTIONS), reply_of(ANSWER)
    )
    prefill, decode = played.legs
    assert prefill.content == (
        b'{"model":"m","prompt":"hi","stream":false,"max_tokens":1,"kv_transfer_params":{"remote_decoder":'
        b'{"kv_request_id":"%s"},"remote_kv_source":{"kv_request_id":"%s","remote_host":"10.0.0.2",'
        b'"remote_port":7778}}}' % (ids.handoff.encode(), ids.pull.encode())
    )
    assert prefill.pull is not None
    assert (prefill.pull.source, prefill.pull.kv_request_id) == (SOURCE, ids.pull)
    assert b"remote_kv_source" not in (decode.content or b"")
    assert ids.pull.encode() not in (decode.content or b"")
    assert decode.pull is None


def test_an_ipv6_prefiller_is_named_without_brackets_and_at_its_ranks_port() -> None:
    prefiller = Peer(Endpoint.parse("[FD00::3]:8002"), 7779)
    played = play(offloading.plan(call_of(b"{}"), route_of(prefiller=prefiller), OPTIONS), reply_of(ANSWER))
    assert b'"remote_host":"fd00::3","remote_port":7779' in (played.deliver.leg.content or b"")
    assert played.legs[0].target.netloc == "[fd00::3]:8002"


@pytest.mark.parametrize(
    "params", [b"null", b'"abc"', b'{"remote_prefiller":{"kv_request_id":"evil"}}', b"[]"]
)
def test_of_the_prefill_answer_only_usage_is_read(params: bytes) -> None:
    ids = fresh_ids()
    answer = b'{"usage":{"prompt_tokens_details":{"cached_tokens":5}},"kv_transfer_params":' + params + b"}"
    plain = play(offloading.plan(call_of(CLIENT, ids=ids), route_of(), OPTIONS), reply_of(ANSWER))
    odd = play(offloading.plan(call_of(CLIENT, ids=ids), route_of(), OPTIONS), reply_of(answer))
    assert odd.deliver.leg == plain.deliver.leg
    assert (odd.deliver.cached_tokens, odd.deliver.handoff_lost) == (5, None)


def test_an_answer_without_a_count_is_a_count_of_none() -> None:
    assert (
        play(offloading.plan(call_of(CLIENT), route_of(), OPTIONS), reply_of(b"{}")).deliver.cached_tokens
        == 0
    )


def test_a_failed_prefill_ends_the_plan_and_decode_is_never_sent() -> None:
    plan = offloading.plan(call_of(CLIENT), route_of(), OPTIONS)
    leg = legs_of(next(plan))[0]
    with pytest.raises(EngineDied):
        plan.throw(EngineDied(leg, "m"))
