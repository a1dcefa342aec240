"""What every connector promises, for every API and any body (contract sections 1, 3, 4 and 5)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sidecar.alone import why_alone
from sidecar.api import APIS, Api
from sidecar.body import Body
from sidecar.call import Call, Ids
from sidecar.connectors import CONNECTORS, Connector, Options
from sidecar.intake import screened
from sidecar.kvparams import Policy
from sidecar.plan import Leg, Peer, Plan, Role
from sidecar.planning import Planner
from sidecar.routing import Route
from tests.connectors.facts import TARGETS, WAYS, Facts
from tests.connectors.play import (
    DECODER,
    OPTIONS,
    SOURCE,
    Played,
    call_of,
    fresh_ids,
    play,
    route_of,
)
from tests.json_texts import VALUES, JsonObject, decoded, json_objects, less, members_of, objects_of

every = pytest.mark.parametrize(
    ("way", "api"),
    [pytest.param(facts, api, id=f"{name}-{api.name}") for name, facts in WAYS.items() for api in APIS],
)
PULLING = {name: facts for name, facts in WAYS.items() if CONNECTORS[facts.connector].pulls is not False}
every_pulling = pytest.mark.parametrize(
    ("way", "api"),
    [pytest.param(facts, api, id=f"{name}-{api.name}") for name, facts in PULLING.items() for api in APIS],
)
every_connector = pytest.mark.parametrize(
    ("connector", "api"),
    [pytest.param(row, api, id=f"{name}-{api.name}") for name, row in CONNECTORS.items() for api in APIS],
)


def test_every_connector_has_its_facts() -> None:
    assert {facts.connector for facts in WAYS.values()} == set(CONNECTORS)


HEADERS = (
    (b"Authorization", b"Bearer k"),
    (b"X-Prefiller-Host-Port", b"10.0.0.3:8000"),
    (b"x-llm-d-prefiller-host-port", b"10.0.0.3:8000"),
    (b"x-encoder-hosts-ports", b"10.0.0.4:8000"),
    (b"X-LLM-D-Encoder-Hosts-Ports", b"10.0.0.4:8000"),
    (b"x-kv-cache-source-host-port", b"10.0.0.2:8001"),
    (b"x-llm-d-kv-cache-source-host-port", b"10.0.0.2:8001"),
    (b"x-data-parallel-host-port", b"10.0.0.1:8000"),
    (b"Connection", b"keep-alive, X-Hop"),
    (b"X-Hop", b"1"),
    (b"Transfer-Encoding", b"chunked"),
    (b"Host", b"gateway"),
    (b"X-a", b"1"),
    (b"X-a", b"\xe9"),
)
KEPT = ((b"Authorization", b"Bearer k"), (b"X-a", b"1"), (b"X-a", b"\xe9"))

# A body with every field that some API caps or relaxes, odd spellings, and params of the client's wherever a
# body can hold them.
BODY = (
    b'{ "model":"m","messages":[ {"role":"user","content":"\\u00e9 \\ud83d <b>"} ],"prompt":[1 ,2],'
    b'"input":"hi",'
    b'"token_ids":[1,2 ],"\\u006bv_transfer_params":{"client":"SENTINEL"},"tools":[{"zebra":1.0,'
    b'"apple":1e-7}],'
    b'"stream":true,"stream_options":{"include_usage":true},"max_tokens":50,"max_output_tokens":51,'
    b'"min_tokens":3,'
    b'"vllm_xargs":{"a":1.0 ,"kv_transfer_params":{"client":"SENTINEL"}},"seed":12345678901234567890,'
    b'"sampling_params":{"max_tokens":52,"top_p":1.0,'
    b'"extra_args":{"kv_transfer_params":{"client":"SENTINEL"},"b":2 }},'
    b'"tool_choice":"required","best_of":4,"logprobs":true,"response_format":{"type":"json_object"},'
    b'"kv_transfer_params":{"client":"SENTINEL"} }'
)
# Contract section 3. The contract caps no field of sglang's own API.
CAPS: dict[str, dict[str, Any]] = {
    "chat_completions": {"max_tokens": 1, "max_completion_tokens": 1},
    "completions": {"max_tokens": 1},
    "responses": {"max_output_tokens": 1},
    "messages": {"max_tokens": 1},
    "vllm_generate": {},
    "sglang_generate": {},
}
# The client's own values of them, which stay where nothing is capped.
CLIENTS_CAPS = {"max_tokens": b"50", "max_output_tokens": b"51", "min_tokens": b"3"}


def plan_of(connector: Connector, call: Call, route: Route, options: Options = OPTIONS) -> Plan:
    """The plan as the sidecar makes it."""
    return Planner(connector, options).plan(call, route)


def body_of(way: Facts, raw: bytes = BODY) -> bytes:
    """The body with what makes the connector go this way."""
    return raw.removesuffix(b" }") + b"," + way.asks + b" }" if way.asks else raw


def played(
    way: Facts,
    api: Api,
    raw: bytes | None = None,
    *,
    source: Peer | None = SOURCE,
    headers: tuple[tuple[bytes, bytes], ...] = HEADERS,
    ids: Ids | None = None,
) -> Played:
    """The whole plan of a request through a prefiller, the client's params stripped where they stay."""
    call = call_of(body_of(way) if raw is None else raw, api, headers, ids)
    planner, route = Planner(CONNECTORS[way.connector], way.options), route_of(source=source)
    call = screened(call, Policy.STRIP, replaced=CONNECTORS[way.connector].by_params)
    return play(planner.plan(call, route), *way.replies)


def legs_to_engines(made: Played) -> list[Leg]:
    """All but the questions to bootstrap servers, which carry nothing of the client's request."""
    return [leg for leg in made.legs if leg.role is not Role.LOOKUP]


def leg_of(made: Played, role: Role) -> Leg:
    """The last leg of that role."""
    return [leg for leg in made.legs if leg.role is role][-1]


def fields_of(leg: Leg) -> dict[str, bytes]:
    assert leg.content is not None
    return dict(members_of(leg.content))


def params_of(leg: Leg) -> Any:
    return json.loads(fields_of(leg).get("kv_transfer_params", b"{}"))


def values_in(value: Any, keys: frozenset[str]) -> list[Any]:
    """Everything that stands under one of these keys, at any depth."""
    if not isinstance(value, dict):
        return []
    own = [value[key] for key in value if key in keys]
    return own + [found for inner in value.values() for found in values_in(inner, keys)]


KV_REQUEST_ID = frozenset({"kv_request_id"})


@every
def test_no_routing_header_leaves_and_the_clients_own_do(way: Facts, api: Api) -> None:
    for leg in legs_to_engines(played(way, api)):
        assert leg.headers[: len(KEPT)] == KEPT
        more = way.prefill_headers if leg.role is Role.PREFILL else ()
        assert [name for name, _ in leg.headers[len(KEPT) :]] == [b"x-request-id", *more]


@every
def test_a_bootstrap_server_gets_nothing_of_the_clients(way: Facts, api: Api) -> None:
    for leg in played(way, api).legs:
        if leg.role is Role.LOOKUP:
            assert (leg.method, leg.headers, leg.content) == (b"GET", (), b"")
            assert leg.timeout_s is not None


@every
def test_every_leg_goes_to_the_apis_own_path(way: Facts, api: Api) -> None:
    assert {(leg.method, leg.path) for leg in legs_to_engines(played(way, api))} == {(b"POST", api.path)}


@every
def test_the_prefiller_computes_and_the_local_engine_answers(way: Facts, api: Api) -> None:
    made = played(way, api)
    assert [(leg.role, leg.target.netloc) for leg in made.legs] == [
        (role, TARGETS[role]) for role in way.roles
    ]
    assert made.deliver.leg.target == DECODER


@every
def test_nothing_of_the_clients_params_leaves_from_any_place(way: Facts, api: Api) -> None:
    legs = played(way, api).legs
    alone = route_of(prefiller=None, source=SOURCE)
    legs += play(plan_of(CONNECTORS[way.connector], call_of(body_of(way), api), alone)).legs
    for leg in legs:
        assert b"SENTINEL" not in (leg.content or b"")


@pytest.mark.parametrize(
    "way", [way for way in WAYS.values() if not CONNECTORS[way.connector].by_params], ids=repr
)
def test_where_no_params_are_ours_the_clients_stay_on_every_leg(way: Facts) -> None:
    params = b'{"client" :"SENTINEL"}'
    raw = body_of(way, b'{"prompt":"hi","kv_transfer_params":' + params + b" }")
    planner, route = Planner(CONNECTORS[way.connector], way.options), route_of()
    call = screened(call_of(raw), Policy.VALIDATE, replaced=planner.sets_params(route))
    legs = play(planner.plan(call, route), *way.replies).legs
    assert [fields_of(leg)["kv_transfer_params"] for leg in legs] == [params] * len(way.roles)


@every
def test_only_the_legs_that_hand_over_carry_params(way: Facts, api: Api) -> None:
    for leg in legs_to_engines(played(way, api)):
        assert ("kv_transfer_params" in fields_of(leg)) == (leg.role in way.params)


@every
def test_the_cap_holds_on_the_prefill_leg(way: Facts, api: Api) -> None:
    fields = fields_of(leg_of(played(way, api), Role.PREFILL))
    if not way.capped:
        assert fields["stream"] == b"true"
        assert {key: fields[key] for key in CLIENTS_CAPS} == CLIENTS_CAPS
        return
    assert {key: json.loads(fields[key]) for key in CAPS[api.name]} == CAPS[api.name]
    assert fields["stream"] == b"false"
    assert not {"min_tokens", "stream_options"} & set(fields)
    if api.name == "vllm_generate":
        sampling = json.loads(fields["sampling_params"])
        assert {key: sampling[key] for key in sampling if key not in way.prefill_adds} == {
            "max_tokens": 1,
            "top_p": 1.0,
            "extra_args": {"b": 2},
        }
        assert fields["sampling_params"].startswith(b'{"max_tokens":1,"top_p":1.0,"extra_args":{"b":2}')


@every
def test_what_shapes_the_prompt_reaches_the_prefiller_byte_for_byte(way: Facts, api: Api) -> None:
    client, sent = dict(members_of(BODY)), fields_of(leg_of(played(way, api), Role.PREFILL))
    for key in ("model", "messages", "prompt", "input", "token_ids", "tools", "seed"):
        assert sent[key] == client[key]


@every
def test_a_prefill_body_has_no_field_that_neither_the_client_nor_the_table_names(
    way: Facts, api: Api
) -> None:
    sent = set(fields_of(leg_of(played(way, api), Role.PREFILL)))
    named = {"kv_transfer_params", *CAPS[api.name], *way.adds, *way.prefill_adds}
    assert sent <= set(dict(members_of(body_of(way)))) | named


@every
def test_the_decode_body_is_the_clients_and_what_the_table_names(way: Facts, api: Api) -> None:
    sent = fields_of(played(way, api).deliver.leg)
    added = way.adds | {"kv_transfer_params"}
    expected = dict(members_of(body_of(way))) | {
        "vllm_xargs": b'{"a":1.0}',
        "sampling_params": b'{"max_tokens":52,"top_p":1.0,"extra_args":{"b":2}}',
    }
    assert [(key, sent[key]) for key in sent if key not in added] == [
        (key, expected[key]) for key in expected if key not in added
    ]
    assert way.adds <= set(sent)
    if Role.DECODE in way.params:
        assert sent["kv_transfer_params"].startswith(b"{")


@every_pulling
def test_the_pull_is_on_the_prefill_leg_only_and_has_an_id_of_its_own(way: Facts, api: Api) -> None:
    prefill, decode = legs_to_engines(played(way, api))
    pull = params_of(prefill)["remote_kv_source"]
    assert (pull["remote_host"], pull["remote_port"]) == ("10.0.0.2", 7778)
    assert set(pull) == {"kv_request_id", "remote_host", "remote_port"}
    assert prefill.pull is not None
    assert (prefill.pull.source, prefill.pull.kv_request_id) == (SOURCE, pull["kv_request_id"])
    assert values_in(params_of(prefill), KV_REQUEST_ID).count(pull["kv_request_id"]) == 1
    assert pull["kv_request_id"] not in values_in(params_of(decode), KV_REQUEST_ID)
    assert "remote_kv_source" not in params_of(decode)
    assert decode.pull is None


@every
def test_without_a_source_or_a_p2p_tier_no_leg_pulls(way: Facts, api: Api) -> None:
    source = SOURCE if CONNECTORS[way.connector].pulls is False else None
    for leg in played(way, api, source=source).legs:
        assert leg.pull is None
        assert b"remote_kv_source" not in (leg.content or b"")


@every
def test_ids_differ_from_call_to_call_and_never_come_from_the_client(way: Facts, api: Api) -> None:
    raw = body_of(way).replace(b'{"client":"SENTINEL"}', b'{"remote_kv_source":{"kv_request_id":"SENTINEL"}}')
    keys = way.ids | KV_REQUEST_ID
    seen: list[Any] = []
    for _ in range(3):
        legs = legs_to_engines(played(way, api, raw))
        seen += {found for leg in legs for found in values_in(json.loads(leg.content or b""), keys)}
    assert len(seen) == len(set(seen))
    assert len(seen) == 3 * (len(way.ids) + (CONNECTORS[way.connector].pulls is not False))
    assert "SENTINEL" not in seen


@every
def test_both_legs_name_the_handoff_by_the_same_id(way: Facts, api: Api) -> None:
    legs = {
        leg.role: json.loads(leg.content or b"") for leg in legs_to_engines(played(way, api, source=None))
    }
    found = {role: values_in(body, way.ids) for role, body in legs.items()}
    assert found[Role.PREFILL] == found[Role.DECODE]
    assert len(found[Role.PREFILL]) == len(way.ids)


@every
def test_all_legs_share_one_request_id(way: Facts, api: Api) -> None:
    ids = fresh_ids()
    for sent, expected in (
        ((), (b"x-request-id", ids.request.encode())),
        (((b"X-Request-ID", b"rid-1"),), (b"X-Request-ID", b"rid-1")),
    ):
        for leg in legs_to_engines(played(way, api, headers=sent, ids=ids)):
            assert [pair for pair in leg.headers if pair[0] not in way.prefill_headers] == [expected]


@every
def test_legs_are_deterministic(way: Facts, api: Api) -> None:
    ids = fresh_ids()
    first, second = [played(way, api, ids=ids) for _ in range(2)]
    assert first == second


@every
def test_the_answers_count_of_cached_tokens_is_changed_only_after_a_known_prefill(
    way: Facts, api: Api
) -> None:
    serial_moriio = way.connector == "moriio" and way.replies
    known = way.connector in ("nixlv2", "offloading") or serial_moriio  # contract section 5
    assert played(way, api).deliver.cached_tokens == (96 if known else None)


@every_connector
def test_without_a_prefiller_the_local_engine_gets_the_original_bytes(connector: Connector, api: Api) -> None:
    ids = fresh_ids()
    original = BODY.replace(b',"kv_transfer_params":{"client":"SENTINEL"} }', b" }")  # no duplicate keys
    plan = plan_of(connector, call_of(original, api, HEADERS, ids), route_of(prefiller=None))
    made = play(plan)
    assert made.steps == []
    assert made.deliver.leg == Leg(Role.DECODE, DECODER, b"POST", api.path, KEPT, original)
    assert made.deliver.cached_tokens is None


@every_connector
def test_without_a_prefiller_a_pull_is_the_only_change(connector: Connector, api: Api) -> None:
    ids = fresh_ids()
    made = play(plan_of(connector, call_of(BODY, api, ids=ids), route_of(prefiller=None, source=SOURCE)))
    pull = {"kv_request_id": ids.pull, "remote_host": "10.0.0.2", "remote_port": 7778}
    assert params_of(made.deliver.leg) == {"remote_kv_source": pull}
    assert made.deliver.leg.pull is not None
    assert made.deliver.cached_tokens is None
    untouched = set(fields_of(made.deliver.leg)) - {"kv_transfer_params", "vllm_xargs", "sampling_params"}
    client = dict(members_of(BODY))
    assert {key: fields_of(made.deliver.leg)[key] for key in untouched} == {
        key: client[key] for key in untouched
    }


PLACES = {
    "kv_transfer_params": ("kv_transfer_params",),
    "vllm_xargs": ("vllm_xargs", "kv_transfer_params"),
    "sampling_params": ("sampling_params", "extra_args", "kv_transfer_params"),
}
_NAMED: dict[str, st.SearchStrategy[str]] = {
    "messages": VALUES,
    "max_tokens": VALUES,
    "stream": VALUES,
    "kv_transfer_params": VALUES,
    "vllm_xargs": objects_of("kv_transfer_params"),
    "sampling_params": objects_of("max_tokens", "extra_args", value=objects_of("kv_transfer_params")),
}


@settings(max_examples=60, deadline=None)
@given(
    made=json_objects(_NAMED),
    api=st.sampled_from(APIS),
    way=st.sampled_from([facts for facts in WAYS.values() if not facts.asks]),
    pulls=st.booleans(),
)
def test_any_body_reaches_the_decoder_as_the_client_wrote_it(
    made: JsonObject, api: Api, way: Facts, *, pulls: bool
) -> None:
    assume(why_alone(api, Body.parse(made.text)) is None)
    pulls = pulls and CONNECTORS[way.connector].pulls is not False
    plan = played(way, api, made.text, source=SOURCE if pulls else None)
    prefill, decode = legs_to_engines(plan)
    sent = fields_of(decode)
    added = way.adds | {"kv_transfer_params"}
    expected = {key: value for key, value in made.fields.items() if key not in added}
    assert [key for key in sent if key not in added] == list(expected)
    for key, value in expected.items():
        if key in PLACES:
            assert decoded(sent[key]) == decoded(less(value, *PLACES[key][1:]))
        else:
            assert sent[key] == value
    if way.capped:
        assert fields_of(prefill)["stream"] == b"false"
    assert set(params_of(prefill)) & {"remote_kv_source"} == ({"remote_kv_source"} if pulls else set())
