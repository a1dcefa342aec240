"""The plan of `mooncake`, played (contract section 5)."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from sidecar.connectors import Options, mooncake
from sidecar.endpoint import Endpoint
from sidecar.errors import BadRequest, EngineUnreachable, UnusableAnswer
from sidecar.plan import Ask, Deliver, Leg, Peer, Reply, Role, Start
from tests.connectors.play import (
    DECODER,
    OPTIONS,
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

CLIENT = b'{"model":"m","prompt":"hi", "stream":true,"max_tokens":50,"min_tokens":3,"stop":["x"]}'
# As vLLM 0.32's bootstrap server answers for one prefiller with two ranks.
MAP = reply_of(
    b'{"0":{"engine_id":"e-0","worker_addr":{"0":{"0":"tcp://10.0.0.3:41000"}}},'
    b'"1":{"engine_id":"e-1","worker_addr":{"0":{"0":"tcp://10.0.0.3:41001"}}}}'
)
SERVER = Endpoint("10.0.0.3", 8998)


def with_number(number: int, reply: Reply = MAP, raw: bytes = CLIENT, api: str = "completions") -> Played:
    """The plan of a request whose random number is this."""
    ids = replace(fresh_ids(), number=number)
    return play(mooncake.plan(call_of(raw, api, ids=ids), route_of(), OPTIONS), reply)


def test_the_engines_are_asked_for_then_both_legs_go_at_once_under_one_transfer_id() -> None:
    ids = replace(fresh_ids(), number=7)
    played = play(mooncake.plan(call_of(CLIENT, ids=ids), route_of(), OPTIONS), MAP)
    headers = ((b"x-request-id", ids.request.encode()),)
    transfer_id = b"xfer-" + ids.handoff.encode()
    query = Leg(Role.LOOKUP, SERVER, b"GET", b"/query", (), b"", timeout_s=5.0)
    prefill = Leg(
        Role.PREFILL,
        PREFILLER.endpoint,
        b"POST",
        b"/v1/completions",
        (*headers, (b"x-data-parallel-rank", b"1")),
        b'{"model":"m","prompt":"hi","stream":false,"max_tokens":1,"ignore_eos":true,'
        b'"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"%s"}}'
        % transfer_id,
    )
    decode = Leg(
        Role.DECODE,
        DECODER,
        b"POST",
        b"/v1/completions",
        headers,
        b'{"model":"m","prompt":"hi","stream":true,"max_tokens":50,"min_tokens":3,"stop":["x"],'
        b'"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"transfer_id":"%s",'
        b'"remote_bootstrap_addr":"http://10.0.0.3:8998","remote_engine_id":"e-1"}}' % transfer_id,
    )
    assert played.steps == [Ask((query,), mooncake.REMEMBERED_S), Start(prefill)]
    assert played.end == Deliver(decode)


def test_every_rank_gets_its_share_and_its_own_engine_id() -> None:
    seen: Counter[bytes] = Counter()
    for number in range(100):
        _, prefill, decode = with_number(number * 2**31 + number).legs
        rank = dict(prefill.headers)[b"x-data-parallel-rank"]
        engine_id = json.loads(decode.content or b"")["kv_transfer_params"]["remote_engine_id"]
        assert engine_id == f"e-{rank.decode()}"
        seen[rank] += 1
    assert seen == {b"0": 50, b"1": 50}


def test_a_clients_own_rank_is_replaced_on_the_prefill_leg_and_stays_on_decode() -> None:
    call = call_of(CLIENT, headers=((b"X-Data-Parallel-Rank", b"9"),))
    _, prefill, decode = play(mooncake.plan(call, route_of(), OPTIONS), MAP).legs
    assert [value for name, value in prefill.headers if name.lower() == b"x-data-parallel-rank"] in (
        [b"0"],
        [b"1"],
    )
    assert (b"X-Data-Parallel-Rank", b"9") in decode.headers


def test_an_ipv6_bootstrap_address_keeps_its_brackets_and_has_the_settings_port() -> None:
    prefiller = Peer(Endpoint.parse("[FD00::3]:8002"), 7777)
    plan = mooncake.plan(call_of(b"{}"), route_of(prefiller=prefiller), Options(mooncake_bootstrap_port=9000))
    query, prefill, decode = play(plan, MAP).legs
    assert query.target == Endpoint("fd00::3", 9000)
    assert prefill.target.netloc == "[fd00::3]:8002"
    params = json.loads(decode.content or b"")["kv_transfer_params"]
    assert params["remote_bootstrap_addr"] == "http://[fd00::3]:9000"


@pytest.mark.parametrize(
    ("content", "engine"),
    [
        (b'{"3":{"engine_id":"e-3"}}', ("3", "e-3")),
        (b'{"0":{"engine_id":""},"1":{"engine_id":"e-1"}}', ("1", "e-1")),
        (b'{"0":null,"1":[],"2":"x","3":{},"4":{"engine_id":5},"5":{"engine_id":"e-5"}}', ("5", "e-5")),
        (b'{"x":{"engine_id":"e"},"-1":{"engine_id":"e"},"2":{"engine_id":"e-2"}}', ("2", "e-2")),
        (
            '{"\u0661":{"engine_id":"e"},"1\\r\\nx: y":{"engine_id":"e"},"2":{"engine_id":"e-2"}}'.encode(),
            ("2", "e-2"),
        ),
    ],
)
def test_only_entries_with_a_rank_and_an_engine_id_are_chosen_from(
    content: bytes, engine: tuple[str, str]
) -> None:
    for number in range(6):
        _, prefill, decode = with_number(number, reply_of(content)).legs
        params = json.loads(decode.content or b"")["kv_transfer_params"]
        assert (dict(prefill.headers)[b"x-data-parallel-rank"].decode(), params["remote_engine_id"]) == engine


@pytest.mark.parametrize(
    "content", [b"{}", b'{"0":{}}', b'{"x":{"engine_id":"e"}}', b'{"detail":"Not Found"}']
)
def test_an_answer_without_a_usable_rank_ends_the_plan_and_names_the_server(content: bytes) -> None:
    plan = mooncake.plan(call_of(CLIENT), route_of(), OPTIONS)
    next(plan)
    with pytest.raises(
        UnusableAnswer, match=r"bootstrap server at 10\.0\.0\.3:8998 names no engine"
    ) as raised:
        plan.send([reply_of(content)])
    assert raised.value.status == 502


def test_a_failed_query_ends_the_plan_and_no_engine_is_asked() -> None:
    plan = mooncake.plan(call_of(CLIENT), route_of(), OPTIONS)
    [query] = legs_of(next(plan))
    with pytest.raises(EngineUnreachable):
        plan.throw(EngineUnreachable(query, "m"))


def test_a_body_that_cannot_be_capped_is_refused_before_anything_is_asked() -> None:
    plan = mooncake.plan(call_of(b'{"sampling_params":5}', "vllm_generate"), route_of(), OPTIONS)
    with pytest.raises(BadRequest, match="sampling_params"):
        next(plan)


@pytest.mark.parametrize("api", ["chat_completions", "completions", "responses"])
def test_nothing_but_the_cap_ends_the_prefill(api: str) -> None:
    raw = b'{"model":"m","stop_token_ids":[5],"ignore_eos":false,"min_tokens":3}'
    _, prefill, decode = with_number(0, raw=raw, api=api).legs
    sent = json.loads(prefill.content or b"")
    assert sent["ignore_eos"] is True
    assert not {"stop_token_ids", "min_tokens"} & set(sent)
    assert (decode.content or b"").startswith(raw[:-1])


def test_nothing_but_the_cap_ends_the_prefill_of_generate_either() -> None:
    raw = b'{"token_ids":[1],"sampling_params":{"stop_token_ids":[5],"min_tokens":3,"top_p":1.0}}'
    _, prefill, decode = with_number(0, raw=raw, api="vllm_generate").legs
    assert (prefill.content or b"").startswith(
        b'{"token_ids":[1],"sampling_params":{"top_p":1.0,"ignore_eos":true,"max_tokens":1},'
    )
    assert (decode.content or b"").startswith(raw[:-1])


def test_a_source_is_not_pulled_from() -> None:
    ids = fresh_ids()
    plain = play(mooncake.plan(call_of(CLIENT, ids=ids), route_of(), OPTIONS), MAP)
    named = play(mooncake.plan(call_of(CLIENT, ids=ids), route_of(source=SOURCE), OPTIONS), MAP)
    assert named == plain
