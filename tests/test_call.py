"""The legs that can be made of a call: headers, paths and whole bodies (contract sections 3 to 5)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar import headers as names
from sidecar.api import APIS, Api
from sidecar.body import BadBody, Body
from sidecar.call import Call, Ids
from sidecar.endpoint import Endpoint
from sidecar.errors import BadRequest
from sidecar.plan import Leg, Peer, Pull, Role
from tests.json_texts import VALUES, JsonObject, decoded, json_objects, less, members_of, objects_of

BY_NAME = {api.name: api for api in APIS}
DECODER = Endpoint("localhost", 8200)
PREFILLER = Peer(Endpoint("10.0.0.3", 8000), 7777)
SOURCE = Peer(Endpoint("fd00::2", 8001), 7778)
IDS = Ids(
    request="11111111-1111-4111-8111-111111111111",
    handoff="22222222-2222-4222-8222-222222222222",
    pull="33333333-3333-4333-8333-333333333333",
    number=1 << 62,
)
PULL = b'{"kv_request_id":"33333333-3333-4333-8333-333333333333","remote_host":"fd00::2","remote_port":7778}'


def call_of(raw: bytes, api: str = "completions", headers: names.Headers = (), query: bytes = b"") -> Call:
    """A call with this body."""
    return Call(BY_NAME[api], BY_NAME[api].path + query, headers, Body.parse(raw), IDS)


def content_of(leg: Leg) -> bytes:
    assert leg.content is not None
    return leg.content


# Decode only


def test_a_request_that_needs_no_change_goes_on_byte_for_byte() -> None:
    raw = (
        b' { "model":"m",\n "prompt":"\\u00e9 <b>\\ud83d", "seed": 12345678901234567890, "x":1.0,"y":1e-7 }\n'
    )
    headers = ((b"Authorization", b"Bearer k"), (b"X-a", b"1"), (b"X-a", b"2"))
    leg = call_of(raw, headers=headers, query=b"?x=1&y=a%20b").decode(DECODER, None)
    assert leg == Leg(Role.DECODE, DECODER, b"POST", b"/v1/completions?x=1&y=a%20b", headers, raw, None)


def test_a_pull_becomes_the_only_kv_transfer_param() -> None:
    leg = call_of(b'{"prompt":"hi", "max_tokens" : 5}').decode(DECODER, SOURCE)
    assert leg.content == (
        b'{"prompt":"hi","max_tokens":5,"kv_transfer_params":{"remote_kv_source":' + PULL + b"}}"
    )
    assert leg.pull == Pull(SOURCE, IDS.pull)
    assert (leg.role, leg.target, leg.headers) == (Role.DECODE, DECODER, ())


def test_a_pull_replaces_the_clients_own_params_wherever_they_stand() -> None:
    raw = (
        b'{"\\u006bv_transfer_params":{"remote_decoder":{"kv_request_id":"evil"}},"prompt":"hi",'
        b'"vllm_xargs":{"kv_transfer_params":{"z":1},"k":1.0},"kv_transfer_params":{"z":2}}'
    )
    assert call_of(raw).decode(DECODER, SOURCE).content == (
        b'{"kv_transfer_params":{"remote_kv_source":' + PULL + b'},"prompt":"hi","vllm_xargs":{"k":1.0}}'
    )


# Prefill, then decode

CHAT = (
    b'{ "model":"m", "messages":[ {"role":"user","content":"hi"} ],"stream":true,"max_tokens":50,'
    b'"min_tokens":3,'
    b'"stream_options":{"include_usage":true},"kv_transfer_params":{"evil":1},"temperature":0.70}'
)


def test_the_prefill_leg_is_the_clients_body_capped_with_the_given_params() -> None:
    leg = call_of(CHAT, "chat_completions").prefill(
        PREFILLER, {"do_remote_decode": True, "remote_host": None}, None
    )
    assert dict(members_of(content_of(leg))) == {
        "model": b'"m"',
        "messages": b'[ {"role":"user","content":"hi"} ]',
        "stream": b"false",
        "max_tokens": b"1",
        "max_completion_tokens": b"1",
        "temperature": b"0.70",
        "kv_transfer_params": b'{"do_remote_decode":true,"remote_host":null}',
    }
    assert (leg.role, leg.target, leg.path, leg.method) == (
        Role.PREFILL,
        PREFILLER.endpoint,
        b"/v1/chat/completions",
        b"POST",
    )
    assert leg.pull is None


def test_a_pull_goes_with_the_params_of_the_prefill_leg() -> None:
    leg = call_of(b"{}").prefill(PREFILLER, {"a": 1}, SOURCE)
    assert content_of(leg) == (
        b'{"max_tokens":1,"stream":false,"kv_transfer_params":{"a":1,"remote_kv_source":' + PULL + b"}}"
    )
    assert leg.pull == Pull(SOURCE, IDS.pull)


def test_the_params_that_are_given_are_not_changed_by_a_pull() -> None:
    params: dict[str, Any] = {"a": 1}
    call_of(b"{}").prefill(PREFILLER, params, SOURCE)
    assert params == {"a": 1}


def test_the_decode_leg_gets_the_clients_own_values_back_and_absent_stays_absent() -> None:
    leg = call_of(CHAT, "chat_completions").decode_after_prefill(DECODER, b'{"x": 1.0 }')
    assert content_of(leg) == (
        b'{"model":"m","messages":[ {"role":"user","content":"hi"} ],"stream":true,"max_tokens":50,'
        b'"min_tokens":3,'
        b'"stream_options":{"include_usage":true},"kv_transfer_params":{"x": 1.0 },"temperature":0.70}'
    )
    assert (leg.role, leg.target, leg.pull) == (Role.DECODE, DECODER, None)


def test_without_a_handoff_the_decode_leg_has_no_params_at_all() -> None:
    raw = b'{"prompt":"hi","kv_transfer_params":{"evil":1},"vllm_xargs":{"kv_transfer_params":{"evil":1}}}'
    assert call_of(raw).decode_after_prefill(DECODER, None).content == b'{"prompt":"hi","vllm_xargs":{}}'


def test_legs_never_change_the_call_that_they_are_made_of() -> None:
    call = call_of(CHAT, "chat_completions")
    call.prefill(PREFILLER, {"a": 1}, SOURCE)
    call.decode_after_prefill(DECODER, b"{}")
    call.decode(DECODER, SOURCE)
    assert call.body.encode() == CHAT
    assert call.decode(DECODER, None).content == CHAT


@pytest.mark.parametrize("sampling", ["[]", '"x"', "1", "true", "9" * 5000, '"\\ud83d"'])
def test_sampling_params_that_cannot_be_capped_are_the_clients_fault(sampling: str) -> None:
    call = call_of(f'{{"token_ids":[1],"sampling_params":{sampling}}}'.encode(), "vllm_generate")
    with pytest.raises(BadRequest, match="sampling_params"):
        call.prefill(PREFILLER, {}, None)


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize(
    "field",
    [
        "tool_choice",
        "sampling_params",
        "vllm_xargs",
        "kv_transfer_params",
        "stream_options",
        "response_format",
        "x",
    ],
)
def test_nothing_that_json_allows_breaks_the_making_of_a_leg(name: str, field: str) -> None:
    values = [
        "9" * 5000,
        "-" + "9" * 5000,
        "1e999",
        '{"type":%s}' % ("9" * 5000),
        '{"extra_args":%s}' % ("9" * 5000),
    ]
    for levels in range(100, 1000, 30):
        values += ["[" * levels + "]" * levels, '{"a":' * levels + "1" + "}" * levels]
        values += [f'{{"extra_args":{values[-1]}}}', f'{{"kv_transfer_params":{values[-2]}}}']
    for value in values:
        try:
            call = call_of(f'{{"model":"m","{field}":{value}}}'.encode(), name)
        except BadBody:
            continue
        assert call.decode(DECODER, None).content == call.body.encode()
        assert b'"m"' in content_of(call.decode(DECODER, SOURCE))
        assert b'"m"' in content_of(call.decode_after_prefill(DECODER, b"{}"))
        try:
            assert b'"m"' in content_of(call.prefill(PREFILLER, {}, SOURCE))
        except BadRequest as refusal:
            assert field in refusal.message  # noqa: PT017 - the refusal is one of two right outcomes


# Headers


@pytest.mark.parametrize("spelling", [b"x-request-id", b"X-Request-Id", b"X-REQUEST-ID"])
def test_the_clients_request_id_is_shared_by_both_legs_as_it_was_sent(spelling: bytes) -> None:
    headers = ((b"A", b"1"), (spelling, b"rid-1"), (b"B", b"2"))
    call = call_of(b"{}", headers=headers)
    assert call.prefill(PREFILLER, {}, None).headers == headers
    assert call.decode_after_prefill(DECODER, None).headers == headers


@pytest.mark.parametrize("sent", [(), ((b"X-Request-Id", b""),)], ids=["absent", "empty"])
def test_without_a_request_id_both_legs_share_a_fresh_one(sent: names.Headers) -> None:
    call = call_of(b"{}", headers=((b"A", b"1"), *sent, (b"A", b"2")))
    expected = ((b"A", b"1"), (b"A", b"2"), (b"x-request-id", IDS.request.encode()))
    assert call.prefill(PREFILLER, {}, None).headers == expected
    assert call.decode_after_prefill(DECODER, b"{}").headers == expected


def test_a_request_with_one_leg_keeps_its_headers_as_they_are() -> None:
    headers = ((b"A", b"1"), (b"x-request-id", b""))
    assert call_of(b"{}", headers=headers).decode(DECODER, None).headers == headers


# Any body at all

# Contract section 3: fields of the cap, and what only constrains or describes the output, by API.
CAP: dict[str, dict[str, bytes | None]] = {
    "chat_completions": {"max_tokens": b"1", "max_completion_tokens": b"1"},
    "completions": {"max_tokens": b"1"},
    "responses": {"max_output_tokens": b"1"},
    "messages": {"max_tokens": b"1"},
    "vllm_generate": {},
    "sglang_generate": {},
}
ALL_CAPS: dict[str, bytes | None] = {"min_tokens": None, "stream": b"false", "stream_options": None}
RELAXED = {
    "n",
    "best_of",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "response_format",
    "structured_outputs",
} | {
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "text",
    "include",
    "tool_choice",
}
PLACES = {"kv_transfer_params", "vllm_xargs", "sampling_params"}

_CAPPED = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "min_tokens",
    "stream",
    "stream_options",
)
NAMED: dict[str, st.SearchStrategy[str]] = {
    **dict.fromkeys((*_CAPPED, "messages", "tools", "n", "cache_salt"), VALUES),
    "tool_choice": st.one_of(VALUES, st.sampled_from(('"required"', '{"type":"tool"}', "9" * 5000))),
    "kv_transfer_params": VALUES,
    "vllm_xargs": objects_of("kv_transfer_params", "kept"),
    "sampling_params": objects_of(
        "max_tokens",
        "max_new_tokens",
        "min_tokens",
        "seed",
        "extra_args",
        value=objects_of("kv_transfer_params", "k"),
    ),
}


def client_fields(made: JsonObject) -> list[tuple[str, bytes]]:
    """The client's fields that no connector may touch: all but the places that can hold params."""
    return [(key, value) for key, value in made.fields.items() if key not in PLACES]


@settings(max_examples=60, deadline=None)
@given(made=json_objects(NAMED), api=st.sampled_from(APIS), pulls=st.booleans())
def test_any_prefill_leg_differs_from_the_clients_body_only_in_the_named_fields(
    made: JsonObject, api: Api, pulls: bool
) -> None:
    leg = call_of(made.text, api.name).prefill(PREFILLER, {"p": 1}, SOURCE if pulls else None)
    sent = members_of(content_of(leg))
    changed = ALL_CAPS | CAP[api.name]
    assert len(sent) == len(dict(sent)), "one of each key"
    touched = set(changed) | RELAXED | PLACES
    kept = [(key, value) for key, value in made.fields.items() if key not in touched]
    assert [(key, value) for key, value in sent if key not in touched] == kept
    assert {key: dict(sent).get(key) for key in changed} == changed
    params = json.loads(dict(sent)["kv_transfer_params"])
    assert set(params) == ({"p", "remote_kv_source"} if pulls else {"p"})
    for key in RELAXED & set(dict(sent)):
        assert key == "tool_choice" or dict(sent)[key] == made.fields[key]
    order = [key for key in made.fields if key in dict(sent)]
    assert [key for key, _ in sent][: len(order)] == order
    if "vllm_xargs" in made.fields:
        left = less(made.fields["vllm_xargs"], "kv_transfer_params")
        assert decoded(dict(sent)["vllm_xargs"]) == decoded(left)


@settings(max_examples=60, deadline=None)
@given(made=json_objects(NAMED), api=st.sampled_from(APIS), handoff=st.none() | VALUES)
def test_any_decode_leg_is_the_clients_body_and_the_params_of_the_handoff(
    made: JsonObject, api: Api, handoff: str | None
) -> None:
    params = None if handoff is None else handoff.encode()
    sent = members_of(content_of(call_of(made.text, api.name).decode_after_prefill(DECODER, params)))
    assert len(sent) == len(dict(sent)), "one of each key"
    assert [(key, value) for key, value in sent if key not in PLACES] == client_fields(made)
    assert dict(sent).get("kv_transfer_params") == params
    if "sampling_params" in made.fields:
        left = less(made.fields["sampling_params"], "extra_args", "kv_transfer_params")
        assert decoded(dict(sent)["sampling_params"]) == decoded(left)
    order = [key for key in made.fields if key in dict(sent)]
    assert [key for key, _ in sent if key in made.fields] == order


@settings(max_examples=60, deadline=None)
@given(made=json_objects(NAMED), api=st.sampled_from(APIS))
def test_any_body_goes_on_identically_when_nothing_has_to_change_and_with_one_field_for_a_pull(
    made: JsonObject, api: Api
) -> None:
    call = call_of(made.text, api.name)
    unchanged = call.decode(DECODER, None).content
    assert unchanged is not None
    if len(made.fields) == len(made.members):
        assert unchanged == made.text
    else:  # of duplicate keys one goes on
        assert members_of(unchanged) == list(made.fields.items())
    sent = members_of(content_of(call.decode(DECODER, SOURCE)))
    assert [(key, value) for key, value in sent if key not in PLACES] == client_fields(made)
    assert dict(sent)["kv_transfer_params"] == b'{"remote_kv_source":' + PULL + b"}"
