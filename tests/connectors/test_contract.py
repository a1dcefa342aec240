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
from sidecar.call import Call
from sidecar.connectors import CONNECTORS, Connector
from sidecar.plan import Leg, Peer, Plan, Role
from sidecar.planning import Planner
from sidecar.routing import Route
from tests.connectors.play import (
    DECODER,
    OPTIONS,
    PREFILLER,
    SOURCE,
    Played,
    call_of,
    fresh_ids,
    play,
    reply_of,
    route_of,
)
from tests.json_texts import VALUES, JsonObject, decoded, json_objects, less, members_of, objects_of

EVERY = [
    pytest.param(connector, api, id=f"{name}-{api.name}")
    for name, connector in CONNECTORS.items()
    for api in APIS
]
every = pytest.mark.parametrize(("connector", "api"), EVERY)

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
ANSWER = (
    b'{"id":"x","usage":{"prompt_tokens_details":{"cached_tokens":96}},'
    b'"kv_transfer_params":{"do_remote_prefill":true,'
    b'"do_remote_decode":false,"remote_block_ids":[[9]],"remote_engine_id":"e","remote_request_id":"r",'
    b'"remote_host":"10.0.0.3","remote_port":18150}}'
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


def plan_of(connector: Connector, call: Call, route: Route) -> Plan:
    """The plan as the sidecar makes it."""
    return Planner(connector, OPTIONS).plan(call, route)


def played(connector: Connector, api: Api, raw: bytes = BODY, source: Peer | None = SOURCE) -> Played:
    """The whole plan of a request through a prefiller."""
    plan = plan_of(connector, call_of(raw, api, HEADERS), route_of(source=source))
    return play(plan, reply_of(ANSWER))


def fields_of(leg: Leg) -> dict[str, bytes]:
    assert leg.content is not None
    return dict(members_of(leg.content))


def params_of(leg: Leg) -> Any:
    return json.loads(fields_of(leg).get("kv_transfer_params", b"{}"))


def ids_in(value: Any) -> list[str]:
    """Every `kv_request_id` in the params."""
    if not isinstance(value, dict):
        return []
    own = [value["kv_request_id"]] if "kv_request_id" in value else []
    return own + [found for inner in value.values() for found in ids_in(inner)]


@every
def test_no_routing_header_leaves_and_the_clients_own_do(connector: Connector, api: Api) -> None:
    for leg in played(connector, api).legs:
        assert leg.headers[: len(KEPT)] == KEPT
        assert [name for name, _ in leg.headers[len(KEPT) :]] == [b"x-request-id"]


@every
def test_every_leg_goes_to_the_apis_own_path(connector: Connector, api: Api) -> None:
    assert {(leg.method, leg.path) for leg in played(connector, api).legs} == {(b"POST", api.path)}


@every
def test_the_prefiller_computes_and_the_local_engine_answers(connector: Connector, api: Api) -> None:
    made = played(connector, api)
    roles = [(leg.role, leg.target) for leg in made.legs]
    assert roles == [(Role.PREFILL, PREFILLER.endpoint), (Role.DECODE, DECODER)]


@every
def test_nothing_of_the_clients_params_leaves_from_any_place(connector: Connector, api: Api) -> None:
    legs = played(connector, api).legs
    legs += play(plan_of(connector, call_of(BODY, api), route_of(prefiller=None, source=SOURCE))).legs
    for leg in legs:
        assert b"SENTINEL" not in (leg.content or b"")


@every
def test_the_cap_holds_on_the_prefill_leg(connector: Connector, api: Api) -> None:
    fields = fields_of(played(connector, api).legs[0])
    assert {key: json.loads(fields[key]) for key in CAPS[api.name]} == CAPS[api.name]
    assert fields["stream"] == b"false"
    assert not {"min_tokens", "stream_options"} & set(fields)
    if api.name == "vllm_generate":
        assert fields["sampling_params"] == b'{"max_tokens":1,"top_p":1.0,"extra_args":{"b":2}}'


@every
def test_what_shapes_the_prompt_reaches_the_prefiller_byte_for_byte(connector: Connector, api: Api) -> None:
    client, sent = dict(members_of(BODY)), fields_of(played(connector, api).legs[0])
    for key in ("model", "messages", "prompt", "input", "token_ids", "tools", "seed"):
        assert sent[key] == client[key]


@every
def test_the_decode_body_is_the_clients_and_the_params_byte_for_byte(connector: Connector, api: Api) -> None:
    sent = fields_of(played(connector, api).deliver.leg)
    expected = dict(members_of(BODY)) | {
        "vllm_xargs": b'{"a":1.0}',
        "sampling_params": b'{"max_tokens":52,"top_p":1.0,"extra_args":{"b":2}}',
    }
    assert [(key, sent[key]) for key in sent if key != "kv_transfer_params"] == [
        (key, expected[key]) for key in expected if key != "kv_transfer_params"
    ]
    assert sent["kv_transfer_params"].startswith(b"{")


@every
def test_the_pull_is_on_the_prefill_leg_only_and_has_an_id_of_its_own(connector: Connector, api: Api) -> None:
    prefill, decode = played(connector, api).legs
    pull = params_of(prefill)["remote_kv_source"]
    assert (pull["remote_host"], pull["remote_port"]) == ("10.0.0.2", 7778)
    assert set(pull) == {"kv_request_id", "remote_host", "remote_port"}
    assert prefill.pull is not None
    assert (prefill.pull.source, prefill.pull.kv_request_id) == (SOURCE, pull["kv_request_id"])
    assert ids_in(params_of(prefill)).count(pull["kv_request_id"]) == 1
    assert pull["kv_request_id"] not in ids_in(params_of(decode))
    assert "remote_kv_source" not in params_of(decode)
    assert decode.pull is None


@every
def test_without_a_source_no_leg_pulls(connector: Connector, api: Api) -> None:
    for leg in played(connector, api, source=None).legs:
        assert leg.pull is None
        assert b"remote_kv_source" not in (leg.content or b"")


@every
def test_ids_differ_from_call_to_call_and_never_come_from_the_client(connector: Connector, api: Api) -> None:
    raw = BODY.replace(b'{"client":"SENTINEL"}', b'{"remote_kv_source":{"kv_request_id":"SENTINEL"}}')
    seen: list[str] = []
    for _ in range(3):
        legs = played(connector, api, raw).legs
        seen += sorted({found for leg in legs for found in ids_in(params_of(leg))})
    assert len(seen) == len(set(seen)) >= 3
    assert "SENTINEL" not in seen


@every
def test_both_legs_share_one_request_id(connector: Connector, api: Api) -> None:
    ids = fresh_ids()
    for sent, expected in (
        ((), (b"x-request-id", ids.request.encode())),
        (((b"X-Request-ID", b"rid-1"),), (b"X-Request-ID", b"rid-1")),
    ):
        plan = plan_of(connector, call_of(BODY, api, sent, ids), route_of())
        assert [leg.headers for leg in play(plan, reply_of(ANSWER)).legs] == [(expected,), (expected,)]


@every
def test_legs_are_deterministic(connector: Connector, api: Api) -> None:
    ids = fresh_ids()
    plans = [plan_of(connector, call_of(BODY, api, HEADERS, ids), route_of(source=SOURCE)) for _ in range(2)]
    first, second = [play(plan, reply_of(ANSWER)) for plan in plans]
    assert first == second


@every
def test_without_a_prefiller_the_local_engine_gets_the_original_bytes(connector: Connector, api: Api) -> None:
    ids = fresh_ids()
    original = BODY.replace(b',"kv_transfer_params":{"client":"SENTINEL"} }', b" }")  # no duplicate keys
    plan = plan_of(connector, call_of(original, api, HEADERS, ids), route_of(prefiller=None))
    made = play(plan)
    assert made.steps == []
    assert made.deliver.leg == Leg(Role.DECODE, DECODER, b"POST", api.path, KEPT, original)
    assert made.deliver.cached_tokens is None


@every
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
    connector=st.sampled_from(list(CONNECTORS.values())),
    pulls=st.booleans(),
)
def test_any_body_reaches_the_decoder_as_the_client_wrote_it(
    made: JsonObject, api: Api, connector: Connector, pulls: bool
) -> None:
    assume(why_alone(api, Body.parse(made.text), connector.shares) is None)
    prefill, decode = played(connector, api, made.text, SOURCE if pulls else None).legs
    sent = fields_of(decode)
    expected = dict(made.fields)
    expected.pop("kv_transfer_params", None)
    assert [key for key in sent if key != "kv_transfer_params"] == list(expected)
    for key, value in expected.items():
        if key in PLACES:
            assert decoded(sent[key]) == decoded(less(value, *PLACES[key][1:]))
        else:
            assert sent[key] == value
    assert fields_of(prefill)["stream"] == b"false"
    assert set(params_of(prefill)) & {"remote_kv_source"} == ({"remote_kv_source"} if pulls else set())
