"""The plan of `shared-storage`, played (contract section 5)."""

from __future__ import annotations

import pytest

from sidecar.connectors import shared_storage
from sidecar.errors import EngineDied, LegRefused
from sidecar.plan import Ask, Deliver, Leg, Offer, Reply, Role
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
THRESHOLD = b'{"model":"m","cache_hit_threshold": 0.80,"prompt":"hi", "stream":true,"max_tokens":50}'
ANSWER = reply_of(b'{"usage":{"prompt_tokens_details":{"cached_tokens":96}},"kv_transfer_params":{"a":1}}')
REFUSAL = reply_of(b'{"choices":[{"text":"","finish_reason":"cache_threshold"}]}')
PATH = b"/v1/completions"


def test_prefill_and_then_decode_without_params_of_ours() -> None:
    ids = fresh_ids()
    played = play(shared_storage.plan(call_of(CLIENT, ids=ids), route_of(), OPTIONS), ANSWER)
    headers = ((b"x-request-id", ids.request.encode()),)
    prefill = Leg(
        Role.PREFILL,
        PREFILLER.endpoint,
        b"POST",
        PATH,
        headers,
        b'{"model":"m","prompt":"hi","stream":false,"max_tokens":1}',
    )
    decode = Leg(
        Role.DECODE,
        DECODER,
        b"POST",
        PATH,
        headers,
        CLIENT,
    )
    assert played.steps == [Ask((prefill,))]
    assert played.end == Deliver(decode)


def test_with_a_threshold_the_decoder_is_asked_first_as_the_client_wrote_it() -> None:
    ids = fresh_ids()
    played = play(shared_storage.plan(call_of(THRESHOLD, ids=ids), route_of(), OPTIONS), REFUSAL, ANSWER)
    headers = ((b"x-request-id", ids.request.encode()),)
    first = Leg(Role.DECODE, DECODER, b"POST", PATH, headers, THRESHOLD)
    prefill = Leg(
        Role.PREFILL,
        PREFILLER.endpoint,
        b"POST",
        PATH,
        headers,
        b'{"model":"m","cache_hit_threshold":0,"prompt":"hi","stream":false,"max_tokens":1}',
    )
    decode = Leg(
        Role.DECODE,
        DECODER,
        b"POST",
        PATH,
        headers,
        b'{"model":"m","cache_hit_threshold":0,"prompt":"hi","stream":true,"max_tokens":50}',
    )
    offer, ask = played.steps
    assert isinstance(offer, Offer)
    assert (offer.leg, offer.events, ask) == (first, 2, Ask((prefill,)))
    assert played.end == Deliver(decode)


@pytest.mark.parametrize(
    "answer",
    [
        b"{}",
        b'{"choices":[]}',
        b'{"choices":null}',
        b'{"choices":{"finish_reason":"cache_threshold"}}',
        b'{"choices":[null]}',
        b'{"choices":["cache_threshold"]}',
        b'{"choices":[{"finish_reason":null}]}',
        b'{"choices":[{"finish_reason":"stop"}]}',
        b'{"choices":[{"finish_reason":"stop"},{"finish_reason":"cache_threshold"}]}',
        b'{"finish_reason":"cache_threshold"}',
    ],
)
def test_every_other_answer_is_the_clients(answer: bytes) -> None:
    played = play(shared_storage.plan(call_of(THRESHOLD), route_of(), OPTIONS), reply_of(answer))
    assert (len(played.steps), played.end) == (1, None)


@pytest.mark.parametrize("threshold", [b"0.5", b"1", b"1.0", b"5e-1", b"-1", b'"0"', b"true", b"[0]"])
def test_whatever_may_be_refused_is_offered(threshold: bytes) -> None:
    raw = b'{"cache_hit_threshold":' + threshold + b"}"
    [offer] = play(shared_storage.plan(call_of(raw), route_of(), OPTIONS), reply_of(b"{}")).steps
    assert isinstance(offer, Offer)
    assert offer.leg.content == raw


@pytest.mark.parametrize("threshold", [b"null", b"0", b"0.0", b"-0", b"0e5", b"0.00E-3"])
def test_a_threshold_that_refuses_nothing_is_none(threshold: bytes) -> None:
    raw = b'{"cache_hit_threshold":' + threshold + b"}"
    played = play(shared_storage.plan(call_of(raw), route_of(), OPTIONS), ANSWER)
    assert [leg.role for leg in played.legs] == [Role.PREFILL, Role.DECODE]
    assert played.deliver.leg.content == b'{"cache_hit_threshold":0}'


def test_a_failed_attempt_or_prefill_ends_the_plan() -> None:
    plan = shared_storage.plan(call_of(THRESHOLD), route_of(), OPTIONS)
    [offered] = legs_of(next(plan))
    with pytest.raises(EngineDied):
        plan.throw(EngineDied(offered, "m"))
    plan = shared_storage.plan(call_of(CLIENT), route_of(), OPTIONS)
    [prefill] = legs_of(next(plan))
    with pytest.raises(LegRefused):
        plan.throw(LegRefused(prefill, Reply(404, b"Not Found", (), b"{}", reply_of(b"{}").body)))


def test_a_source_is_not_pulled_from() -> None:
    ids = fresh_ids()
    plain = play(shared_storage.plan(call_of(CLIENT, ids=ids), route_of(), OPTIONS), ANSWER)
    named = play(shared_storage.plan(call_of(CLIENT, ids=ids), route_of(source=SOURCE), OPTIONS), ANSWER)
    assert named == plain
