"""What clients may say in `kv_transfer_params`, wherever it can stand (contract section 3)."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.body import BadBody, Body
from sidecar.errors import BadRequest
from sidecar.kvparams import Policy, cleared, complete_handoff, screen
from tests.json_texts import JsonObject, decoded, json_objects, less, members_of, objects_of

VALIDATE, STRIP, REJECT, PASS = Policy.VALIDATE, Policy.STRIP, Policy.REJECT, Policy.PASS

# Where a body can hold them, around the text of the params.
PLACES = {
    "top": b'{"model":"m","kv_transfer_params":%s}',
    "spelled with escapes": b'{"model":"m","\\u006bv_transfer\\u005fparams" : %s }',
    "last of duplicates": b'{"kv_transfer_params":{},"model":"m","kv_transfer_params":%s}',
    "vllm_xargs": b'{"model":"m","vllm_xargs":{"a":1,"kv_transfer_params":%s}}',
    "vllm_xargs with escapes": b'{"model":"m","vllm\\u005fxargs":{"kv_transfer_param\\u0073": %s}}',
    "extra_args": b'{"model":"m","sampling_params":{"top_p":1.0,"extra_args":{"kv_transfer_params":%s}}}',
}


def one_of_duplicates(raw: bytes) -> bytes:
    """The same text; of the place with duplicate keys what goes on: the last value, at the first's place."""
    first, last = b'{"kv_transfer_params":{},"model":"m"', b',"kv_transfer_params":'
    if not raw.startswith(first):
        return raw
    value = raw.removeprefix(first).removeprefix(last).removesuffix(b"}")
    return b'{"kv_transfer_params":%s,"model":"m"}' % value


def screened(raw: bytes, policy: Policy) -> bytes:
    """The body that goes on under this policy."""
    body = Body.parse(raw)
    edits = screen(body, policy)
    return body.edited(edits).encode() if edits else body.encode()


NIXL = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[9, 10, 11, 12, 13, 14]],
    "remote_engine_id": "0b11839b-260e-4bde-b5de-6f27dc65b68b",
    "remote_request_id": "cmpl-95ffff1a804872c3-0-b16a0a60",
    "remote_host": "127.0.0.1",
    "remote_port": 18150,
    "tp_size": 1,
}
P2P = {
    "kv_request_id": "5e0f1c9e-33a8-4a63-8a61-8ad1ac9a2a0b",
    "remote_host": "10.0.0.2",
    "remote_port": 7777,
}

# Answers of vLLM 0.32 as they came, and what its other connectors and the other roles take.
LEGITIMATE: dict[str, Any] = {
    "nothing": None,
    "an empty object": {},
    "an answer of a NIXL prefiller": NIXL
    | {"dcp_size": 1, "pp_size": 1, "remote_num_tokens": 161, "remote_blocks_expiry_time": None}
    | {"transfer_mode": "pull", "remote_prefill_cached_tokens": 0},
    "an answer of a NIXL decoder": {
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "remote_block_ids": [[10, 11, 12, 13, 14, 15]],
        "remote_engine_id": "3f1b62a1-4458-4f7a-a247-3c5d0e496721",
        "remote_request_id": "cmpl-bc0b83f5baa6e2ac-0-9b220805",
        "remote_host": "127.0.0.1",
        "remote_port": 18250,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 168,
        "remote_blocks_expiry_time": 2548.352512344,
        "transfer_mode": "pull",
    },
    "flat block ids of older versions": NIXL | {"remote_block_ids": [9, 10, 11]},
    "several KV groups, one of them empty": NIXL | {"remote_block_ids": [[9, 10], [], [3]]},
    "a prefiller's role": {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    },
    "a pull": {"remote_kv_source": P2P},
    "a pull by IPv6": {"remote_kv_source": P2P | {"remote_host": "fd00::7"}},
    "a pull by name": {"remote_kv_source": P2P | {"remote_host": "pod-0.pool.ns.svc.cluster.local"}},
    "a P2P prefiller's role": {"remote_decoder": {"kv_request_id": "k"}},
    "a P2P decoder's role": {"remote_prefiller": P2P},
    "both of the legal pair": {"remote_decoder": {"kv_request_id": "k"}, "remote_kv_source": P2P},
    "a pull that is null": {"remote_kv_source": None},
    "keys of later versions": {"remote_new_thing": {"a": [1.0, None]}, "x": "y"},
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("params", LEGITIMATE.values(), ids=LEGITIMATE.keys())
def test_what_engines_themselves_say_goes_on_byte_for_byte(params: Any, place: bytes) -> None:
    raw = place % json.dumps(params).encode()
    assert screened(raw, VALIDATE) == one_of_duplicates(raw)


# Valid JSON that Python's int() refuses to read: over 4,300 digits.
DIGITS = "9" * 5000
DEEP = "[" * 900 + "1" + "]" * 900

# Text of the params, and the field that the refusal must name.
HOSTILE: list[tuple[str, str]] = [
    ('"notadict"', "kv_transfer_params"),
    ('""', "kv_transfer_params"),
    ("[]", "kv_transfer_params"),
    ("0", "kv_transfer_params"),
    ("true", "kv_transfer_params"),
    ("false", "kv_transfer_params"),
    (DIGITS, "kv_transfer_params"),
    ('[{"remote_kv_source":"abc"}]', "kv_transfer_params"),
    # seen on vLLM 0.32: these end the engine process
    ('{"remote_kv_source":"abc"}', "remote_kv_source"),
    ('{"do_remote_prefill":true}', "remote_block_ids"),
    ('{ "do_remote_prefill" :\n true }', "remote_block_ids"),
    ('{"do_remote_\\u0070refill":true}', "remote_block_ids"),
    ('{"remote\\u005fkv_source":"abc"}', "remote_kv_source"),
    ('{"remote_kv_source":null,"remote_kv_source":"abc"}', "remote_kv_source"),
    ('{"a":"\\ud83d","remote_kv_source":"abc"}', "remote_kv_source"),
    ('{"remote_kv_source":["abc"]}', "remote_kv_source"),
    ('{"remote_kv_source":1}', "remote_kv_source"),
    ('{"remote_kv_source":true}', "remote_kv_source"),
    ('{"remote_prefiller":"abc"}', "remote_prefiller"),
    ('{"remote_prefiller":[]}', "remote_prefiller"),
    ('{"remote_decoder":"abc"}', "remote_decoder"),
    ('{"remote_decoder":7}', "remote_decoder"),
    ('{"remote_decoder":{"kv_request_id":["k"]}}', "kv_request_id"),
    ('{"remote_kv_source":{"kv_request_id":1,"remote_host":"h","remote_port":7777}}', "kv_request_id"),
    ('{"remote_kv_source":{"kv_request_id":{"a":1},"remote_host":"h","remote_port":7777}}', "kv_request_id"),
    ('{"remote_kv_source":{"kv_request_id":"k","remote_host":5,"remote_port":7777}}', "remote_host"),
    ('{"remote_kv_source":{"kv_request_id":"k","remote_host":["h"],"remote_port":7777}}', "remote_host"),
    ('{"remote_kv_source":{"kv_request_id":"k","remote_host":"h","remote_port":"7777"}}', "remote_port"),
    ('{"remote_kv_source":{"kv_request_id":"k","remote_host":"h","remote_port":0}}', "remote_port"),
    ('{"remote_kv_source":{"kv_request_id":"k","remote_host":"h","remote_port":-1}}', "remote_port"),
    ('{"remote_kv_source":{"kv_request_id":"k","remote_host":"h","remote_port":65536}}', "remote_port"),
    ('{"remote_kv_source":{"kv_request_id":"k","remote_host":"h","remote_port":7777.5}}', "remote_port"),
    ('{"remote_kv_source":{"kv_request_id":"k","remote_host":"h","remote_port":true}}', "remote_port"),
    ('{"remote_prefiller":{"kv_request_id":"k","remote_host":"h","remote_port":[7777]}}', "remote_port"),
    ('{"do_remote_prefill":"true"}', "do_remote_prefill"),
    ('{"do_remote_prefill":1}', "do_remote_prefill"),
    ('{"do_remote_prefill":{"a":1}}', "do_remote_prefill"),
    ('{"do_remote_decode":"yes"}', "do_remote_decode"),
    ('{"do_remote_decode":1}', "do_remote_decode"),
    ('{"remote_block_ids":"abc"}', "remote_block_ids"),
    ('{"remote_block_ids":5}', "remote_block_ids"),
    ('{"remote_block_ids":{"0":1}}', "remote_block_ids"),
    ('{"remote_block_ids":["a"]}', "remote_block_ids"),
    ('{"remote_block_ids":[[1,"a"]]}', "remote_block_ids"),
    ('{"remote_block_ids":[1.5]}', "remote_block_ids"),
    ('{"remote_block_ids":[null]}', "remote_block_ids"),
    ('{"remote_block_ids":[true]}', "remote_block_ids"),
    (f'{{"remote_block_ids":[[1,{DIGITS}]]}}', "remote_block_ids"),
    (f'{{"remote_block_ids":{DEEP}}}', "remote_block_ids"),
    ('{"remote_engine_id":5}', "remote_engine_id"),
    ('{"remote_engine_id":["e"]}', "remote_engine_id"),
    ('{"remote_request_id":{}}', "remote_request_id"),
    ('{"remote_host":{"a":1}}', "remote_host"),
    ('{"remote_port":"8000"}', "remote_port"),
    (f'{{"remote_port":{DIGITS}}}', "remote_port"),
    ('{"tp_size":"1"}', "tp_size"),
    ('{"tp_size":1.5}', "tp_size"),
    (f'{{"tp_size":{DIGITS}}}', "tp_size"),
    ('{"tp_size":[[[[1]]]]}', "tp_size"),
    ('{"remote_num_tokens":"161"}', "remote_num_tokens"),
    ('{"remote_blocks_expiry_time":"soon"}', "remote_blocks_expiry_time"),
    ('{"transfer_mode":5}', "transfer_mode"),
    ('{"transfer_id":5}', "transfer_id"),
    ('{"remote_bootstrap_addr":5}', "remote_bootstrap_addr"),
    ('{"remote_dp_rank":"0"}', "remote_dp_rank"),
    ('{"remote_hosts":"h"}', "remote_hosts"),
    ('{"remote_hosts":[1]}', "remote_hosts"),
]


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize(("params", "field"), HOSTILE, ids=[text[:60] for text, _ in HOSTILE])
def test_a_hostile_value_is_refused_and_the_field_is_named(params: str, field: str, place: bytes) -> None:
    with pytest.raises(BadRequest) as refusal:
        screened(place % params.encode(), VALIDATE)
    assert "kv_transfer_params" in refusal.value.message
    assert field in refusal.value.message
    assert len(refusal.value.message) < 200, "a refusal repeats no values"


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("field", ["remote_block_ids", "remote_engine_id", "remote_host", "remote_port"])
@pytest.mark.parametrize("missing", [True, False], ids=["absent", "null"])
def test_each_field_that_do_remote_prefill_requires_is_named_when_it_is_not_there(
    field: str, missing: bool, place: bytes
) -> None:
    params = {key: value for key, value in NIXL.items() if key != field} | ({} if missing else {field: None})
    with pytest.raises(BadRequest, match=rf"kv_transfer_params\.{field}\b"):
        screened(place % json.dumps(params).encode(), VALIDATE)


def test_empty_block_ids_end_an_engine_just_as_absent_ones() -> None:
    # vLLM, nixl/pull_scheduler.py, update_state_after_alloc: `if params.get("remote_block_ids"): ... else:
    # assert num_external_tokens == 0`, in the scheduler, with every prompt token counted as external.
    with pytest.raises(BadRequest, match="remote_block_ids"):
        screened(PLACES["top"] % json.dumps(NIXL | {"remote_block_ids": []}).encode(), VALIDATE)


@pytest.mark.parametrize("host", ["a b", "a/b", "@", "h\n", "h?", "\ud83d", "tcp://h", "\u00e9"])
@pytest.mark.parametrize("kind", ["remote_kv_source", "remote_prefiller"])
def test_a_host_that_is_neither_name_nor_address_is_refused(kind: str, host: str) -> None:
    # vLLM, kv_offload/tiering/p2p/control/zmq.py: `dealer.connect(f"tcp://{host}:{port}")` on the scheduler's
    # thread, uncaught; libzmq refuses (EINVAL) an address with characters that no name or address has.
    with pytest.raises(BadRequest, match="remote_host"):
        screened(PLACES["top"] % json.dumps({kind: P2P | {"remote_host": host}}).encode(), VALIDATE)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("field", ["unknown", "remote_block_ids", "remote_kv_source", "tp_size"])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")], ids=["arrays", "objects"])
def test_nesting_of_any_depth_is_refused_or_passed_and_breaks_nothing(
    opening: str, closing: str, field: str, place: bytes
) -> None:
    for levels in range(200, 1000, 40):
        nested = opening * levels + "1" + closing * levels
        raw = place % f'{{"{field}":{nested}}}'.encode()
        try:
            body = Body.parse(raw)
        except BadBody:
            continue
        for policy in Policy:
            with contextlib.suppress(BadRequest):
                screen(body, policy)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"kv_transfer_params_":"abc"}',
        b'{"messages":[{"kv_transfer_params":"abc"}]}',
        b'{"vllm_xargs":{"a":{"kv_transfer_params":"abc"}}}',
        b'{"vllm_xargs":"abc"}',
        b'{"vllm_xargs":null}',
        b'{"vllm_xargs":["kv_transfer_params"]}',
        b'{"sampling_params":null}',
        b'{"sampling_params":{"extra_args":"kv_transfer_params"}}',
        b'{"sampling_params":{"kv_transfer_params":"abc"}}',
        b'{"extra_args":{"kv_transfer_params":"abc"}}',
        b'{"prompt":"\\"kv_transfer_params\\": \\"abc\\""}',
    ],
)
@pytest.mark.parametrize("policy", Policy)
def test_what_no_engine_reads_as_params_is_no_business_of_the_policy(raw: bytes, policy: Policy) -> None:
    assert screened(raw, policy) == raw


# The other policies


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("params", ['{"remote_kv_source":"abc"}', "{}", '"abc"', "5", "[]"])
def test_reject_refuses_any_value_anywhere_and_names_the_field(params: str, place: bytes) -> None:
    with pytest.raises(BadRequest, match="kv_transfer_params"):
        screened(place % params.encode(), REJECT)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("params", ['{"remote_kv_source":"abc"}', '{"do_remote_prefill":true}', '"abc"'])
def test_pass_lets_everything_through_byte_for_byte(params: str, place: bytes) -> None:
    raw = place % params.encode()
    assert screened(raw, PASS) == one_of_duplicates(raw)


@pytest.mark.parametrize(
    ("place", "left"),
    [
        ("top", b'{"model":"m"}'),
        ("spelled with escapes", b'{"model":"m"}'),
        ("last of duplicates", b'{"model":"m"}'),
        ("vllm_xargs", b'{"model":"m","vllm_xargs":{"a":1}}'),
        ("vllm_xargs with escapes", b'{"model":"m","vllm_xargs":{}}'),
        ("extra_args", b'{"model":"m","sampling_params":{"top_p":1.0,"extra_args":{}}}'),
    ],
)
@pytest.mark.parametrize("params", ['{"remote_kv_source":"abc"}', '"abc"', "{}", "null", DEEP])
def test_strip_takes_the_params_out_and_leaves_everything_else(place: str, left: bytes, params: str) -> None:
    assert screened(PLACES[place] % params.encode(), STRIP) == left


def test_strip_takes_them_out_of_every_place_at_once() -> None:
    raw = (
        b'{"kv_transfer_params":{"a":1},"x":1.0,"vllm_xargs":{"kv_transfer_params":"b" , "k":1e-7},'
        b'"sampling_params":{"extra_args":{"kv_transfer_params":[],"kept":"\\ud83d"},"n":1}}'
    )
    left = b'{"x":1.0,"vllm_xargs":{"k":1e-7},"sampling_params":{"extra_args":{"kept":"\\ud83d"},"n":1}}'
    assert screened(raw, STRIP) == left
    body = Body.parse(raw)
    assert body.edited(cleared(body)).encode() == left


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("raw", [b"{}", b' { "model" : "m" } '])
def test_a_body_without_params_goes_on_byte_for_byte(raw: bytes, policy: Policy) -> None:
    assert screened(raw, policy) == raw


def test_the_policies_are_spelled_as_the_flag_spells_them() -> None:
    assert [policy.value for policy in Policy] == ["validate", "strip", "reject", "pass"]


# Any body at all

_PARAMS = objects_of("do_remote_prefill", "remote_kv_source", "remote_block_ids", "remote_port", "tp_size")
_ANY_PARAMS = st.one_of(_PARAMS, st.sampled_from(("null", "true", '"x"', DIGITS)))
_HOLDERS = {
    "kv_transfer_params": _ANY_PARAMS,
    "vllm_xargs": objects_of("kv_transfer_params", value=_ANY_PARAMS),
    "sampling_params": objects_of("extra_args", value=objects_of("kv_transfer_params", value=_ANY_PARAMS)),
}


def scrubbed(fields: dict[str, bytes]) -> dict[str, bytes]:
    """What must be left of these top-level fields once no params are in them."""
    places = {"vllm_xargs": ("kv_transfer_params",), "sampling_params": ("extra_args", "kv_transfer_params")}
    kept = {key: value for key, value in fields.items() if key != "kv_transfer_params"}
    return {key: less(value, *places[key]) if key in places else value for key, value in kept.items()}


@settings(max_examples=40, deadline=None)
@given(made=json_objects(_HOLDERS))
def test_any_body_is_stripped_of_its_params_and_of_nothing_else(made: JsonObject) -> None:
    stripped = dict(members_of(screened(made.text, STRIP)))
    expected = scrubbed(made.fields)
    assert [(key, decoded(value)) for key, value in stripped.items()] == [
        (key, decoded(value)) for key, value in expected.items()
    ]
    assert {key: value for key, value in stripped.items() if key not in _HOLDERS} == {
        key: value for key, value in expected.items() if key not in _HOLDERS
    }


@settings(max_examples=40, deadline=None)
@given(made=json_objects(_HOLDERS), policy=st.sampled_from(Policy))
def test_any_body_is_passed_as_it_is_or_refused_by_name(made: JsonObject, policy: Policy) -> None:
    if policy is STRIP:
        return
    refusal = None
    try:
        passed = screened(made.text, policy)
        if len(made.fields) == len(made.members):
            assert passed == made.text
        else:  # of duplicate keys one goes on
            assert members_of(passed) == list(made.fields.items())
    except BadRequest as refused:
        refusal = refused
    assert refusal is None or "kv_transfer_params" in refusal.message


MANY = b",".join([b'"k%d":1' % number for number in range(10_001)])


@pytest.mark.parametrize("policy", [VALIDATE, STRIP, REJECT])
@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b'{"vllm_xargs":{%b,"kv_transfer_params":{"remote_kv_source":"abc"}}}', "vllm_xargs"),
        (b'{"sampling_params":{%b,"extra_args":{"kv_transfer_params":{}}}}', "sampling_params"),
        (b'{"sampling_params":{"extra_args":{%b,"kv_transfer_params":{}}}}', "extra_args"),
    ],
)
def test_an_object_that_is_too_much_to_look_through_is_refused_by_name(
    raw: bytes, field: str, policy: Policy
) -> None:
    with pytest.raises(BadRequest) as refused:
        screened(raw % MANY, policy)
    assert refused.value.message == f'field "{field}" is too much to look for kv_transfer_params in'
    with pytest.raises(BadRequest):
        cleared(Body.parse(raw % MANY))
    assert screened(raw % MANY, PASS) == raw % MANY


# What a prefiller answered


@pytest.mark.parametrize("params", [NIXL, LEGITIMATE["an answer of a NIXL prefiller"], {"x": 1}, {}])
def test_a_whole_handoff_can_be_given_to_a_decoder(params: dict[str, Any]) -> None:
    assert complete_handoff(json.dumps(params).encode())


@pytest.mark.parametrize("field", ["remote_block_ids", "remote_engine_id", "remote_host", "remote_port"])
def test_a_handoff_that_lacks_a_required_field_would_kill_a_decoder(field: str) -> None:
    absent = {key: value for key, value in NIXL.items() if key != field}
    assert not complete_handoff(json.dumps(absent).encode())
    assert not complete_handoff(json.dumps(absent | {field: None}).encode())
    assert complete_handoff(json.dumps(absent | {"do_remote_prefill": False}).encode())


def test_a_handoff_of_an_older_engine_has_no_request_id() -> None:
    older = {key: value for key, value in NIXL.items() if key != "remote_request_id"}
    assert complete_handoff(json.dumps(older, indent=1).encode())


@pytest.mark.parametrize("raw", [b'"abc"', b"[]", b"5", b"true", b"false", b"[1", b"9" * 5000])
def test_what_is_no_object_is_no_handoff(raw: bytes) -> None:
    assert not complete_handoff(raw)


# What would hold the event loop up


@pytest.mark.parametrize("place", PLACES)
def test_params_over_a_mebibyte_are_refused_by_name(place: str) -> None:
    raw = PLACES[place] % (b'{"a":"%b"}' % (b"x" * 1024 * 1024))
    with pytest.raises(
        BadRequest, match=r'^field "[a-z_.]*kv_transfer_params" is over the limit of 1048576 bytes$'
    ):
        screened(raw, VALIDATE)
    assert screened(raw, PASS) == one_of_duplicates(raw)


@pytest.mark.parametrize("groups", [1, 8])
def test_the_blocks_of_a_million_tokens_are_not_too_many(groups: int) -> None:
    blocks = [list(range(1_000_000 // 16 // groups))] * groups
    raw = json.dumps({"kv_transfer_params": NIXL | {"remote_block_ids": blocks}}).encode()
    assert screened(raw, VALIDATE) == raw


NO_BLOCKS = [b"[]", b"[ ]", b"[[]]", b"[ [] , [ ] ]"]
NO_LIST = [b"{}", b'"x"', b'[["x"]]', b"true", b"7"]


@pytest.mark.parametrize("blocks", NO_BLOCKS)
def test_a_client_that_names_no_block_to_fetch_is_refused(blocks: bytes) -> None:
    params = json.dumps(NIXL).encode().replace(b"[[9, 10, 11, 12, 13, 14]]", blocks)
    with pytest.raises(BadRequest, match=r"remote_block_ids\" is required with do_remote_prefill"):
        screened(b'{"kv_transfer_params":%b}' % params, VALIDATE)


@pytest.mark.parametrize("blocks", [*NO_BLOCKS, *NO_LIST])
def test_a_handoff_that_names_no_block_would_kill_a_decoder(blocks: bytes) -> None:
    params = json.dumps(NIXL).encode().replace(b"[[9, 10, 11, 12, 13, 14]]", blocks)
    assert not complete_handoff(params)
    assert complete_handoff(params.replace(b'"do_remote_prefill": true', b'"do_remote_prefill": false'))


@pytest.mark.parametrize("blocks", [b"[9]", b"[[9]]", b"[[],[0]]", b"[ [ ] , [ 9,10 ] ]", b"[[[9]]]"])
def test_a_handoff_that_names_a_block_in_any_group_is_one(blocks: bytes) -> None:
    assert complete_handoff(json.dumps(NIXL).encode().replace(b"[[9, 10, 11, 12, 13, 14]]", blocks))


@pytest.mark.parametrize("fetches", [b"true", b"1", b'"true"', b"0", b'""', b"[]", b"1.0"])
def test_whatever_is_not_plainly_off_tells_a_decoder_to_fetch(fetches: bytes) -> None:
    said = b'{"do_remote_prefill":%b' % fetches
    assert not complete_handoff(said + b"}")
    whole = {key: value for key, value in NIXL.items() if key != "do_remote_prefill"}
    assert complete_handoff(said + b"," + json.dumps(whole).encode()[1:])


@pytest.mark.parametrize(
    "ids", [b"[1.0]", b"[true]", b"[null]", b'["1"]', b"[[[1]]]", b"[9223372036854775808]"]
)
def test_block_ids_are_integers_of_64_bits(ids: bytes) -> None:
    with pytest.raises(BadRequest, match='remote_block_ids" must be a list of block ids'):
        screened(b'{"kv_transfer_params":{"remote_block_ids":%b}}' % ids, VALIDATE)
