"""Which requests are routed (contract section 2), and what the single-token cap changes (section 3)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar import api as apis
from sidecar.api import Api, capped, find
from sidecar.body import BadBody, Body

BY_NAME = {api.name: api for api in apis.APIS}
PATHS = {
    "chat_completions": b"/v1/chat/completions",
    "completions": b"/v1/completions",
    "responses": b"/v1/responses",
    "messages": b"/v1/messages",
    "vllm_generate": b"/inference/v1/generate",
    "sglang_generate": b"/generate",
}


def capped_body(name: str, raw: bytes) -> bytes:
    """The body of a capped leg of this API."""
    body = Body.parse(raw)
    return body.edited(capped(BY_NAME[name], body)).encode()


def capped_fields(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The same with the JSON decoded."""
    decoded: dict[str, Any] = json.loads(capped_body(name, json.dumps(fields).encode()))
    return decoded


# Routing


@pytest.mark.parametrize(("name", "path"), PATHS.items())
def test_each_routed_path_is_known_under_its_api(name: str, path: bytes) -> None:
    api = find(b"POST", path)
    assert api is not None
    assert (api.name, api.path) == (name, path)


def test_no_other_path_is_routed() -> None:
    assert {api.name: api.path for api in apis.APIS} == PATHS


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("spelling", [b"/%s", b"%s/", b"%s//", b"/.%s", b"//.%s/.", b"/x/..%s", b"%s/x/.."])
def test_a_path_that_cleans_to_a_routed_one_is_that_api(name: str, spelling: bytes) -> None:
    assert find(b"POST", spelling % PATHS[name]) is BY_NAME[name]


@pytest.mark.parametrize(
    "path", [b"//v1/responses", b"/v1/responses/", b"/v1/./responses", b"/v1//responses"]
)
def test_the_contracts_own_examples_of_unclean_paths_are_routed(path: bytes) -> None:
    assert find(b"POST", path) is BY_NAME["responses"]


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/chat/%63ompletions",
        b"/%76%31/chat/completions",
        b"/v1/chat%2Fcompletions",
        b"/v1/chat/completion%73/",
        b"/v1/chat/completions%0A",
        b"/v1/chat/%63ompletions%0a",
    ],
)
def test_a_path_that_engines_decode_to_a_routed_one_cannot_slip_past_unread(path: bytes) -> None:
    # uvicorn 0.54 (protocols/http/httptools_impl.py) unquotes the path before Starlette matches it, so vLLM
    # serves these as chat completions; passed through, their kv_transfer_params would reach it unscreened.
    # Its pattern ends with "$", which matches before a last line feed (Starlette 1.10 routing.py).
    assert find(b"POST", path) is BY_NAME["chat_completions"]


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"PUT", b"OPTIONS", b"DELETE", b"PATCH"])
def test_other_methods_pass_through(method: bytes) -> None:
    for path in PATHS.values():
        assert find(method, path) is None


@pytest.mark.parametrize(
    "path",
    [
        b"/",
        b"",
        b"*",
        b"/v1",
        b"/v1/models",
        b"/v1/chat",
        b"/v1/chat/completions/batch",
        b"/v1/chat/completionsx",
        b"/v1/Chat/Completions",
        b"/v1/responses/resp_1",
        b"/v1/responses/resp_1/cancel",
        b"/v1/messages/count_tokens",
        b"/v1/embeddings",
        b"/x/v1/completions",
        b"/v1/completions/../models",
        b"/inference/v1/generate/x",
        b"/tokenize",
        b"v1/completions",
        b"/v1/completions%0A%0A",
        b"/v1/completions%0D",
        b"/v1/completions%00",
        b"/v1/completions%0Ax",
    ],
)
def test_sub_paths_and_other_paths_pass_through(path: bytes) -> None:
    assert find(b"POST", path) is None


# The cap, on whole bodies

CHAT = (
    b'{ "model":"m", "messages" : [ {"role":"user","content":"\\u00e9 <b>"} ],"stream": true,'
    b'"stream_options":{"include_usage":true},"max_tokens":50,"min_tokens":3,'
    b'"temperature":0.70, "seed":12345678901234567890}'
)


def test_a_chat_body_is_capped_and_nothing_else_changes() -> None:
    assert capped_body("chat_completions", CHAT) == (
        b'{"model":"m","messages":[ {"role":"user","content":"\\u00e9 <b>"} ],"stream":false,'
        b'"max_tokens":1,"temperature":0.70,"seed":12345678901234567890,"max_completion_tokens":1}'
    )


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        (
            "completions",
            (
                b'{"prompt":[1,2 ,3],"max_tokens":16,"min_tokens":null,"stream":true,"stream_options":null,'
                b'"echo":true}'
            ),
            b'{"prompt":[1,2 ,3],"max_tokens":1,"stream":false}',
        ),
        (
            "responses",
            b'{"input":"hi","max_output_tokens":16,"stream":true,"reasoning":{"effort":"low"},"store":true}',
            b'{"input":"hi","max_output_tokens":1,"stream":false,"reasoning":{"effort":"low"},"store":true}',
        ),
        (
            "messages",
            b'{"system":"s","messages":[],"max_tokens":1024,"stream":true}',
            b'{"system":"s","messages":[],"max_tokens":1,"stream":false}',
        ),
        (
            "vllm_generate",
            (
                b'{"token_ids":[1,2],"sampling_params":{ "temperature":0.0 ,"max_tokens":16,"min_tokens":2},'
                b'"stream":true}'
            ),
            b'{"token_ids":[1,2],"sampling_params":{"temperature":0.0,"max_tokens":1},"stream":false}',
        ),
    ],
)
def test_each_api_is_capped_in_its_own_field_only(name: str, raw: bytes, expected: bytes) -> None:
    assert capped_body(name, raw) == expected


@pytest.mark.parametrize(
    ("name", "cap"),
    [
        ("chat_completions", {"max_tokens": 1, "max_completion_tokens": 1}),
        ("completions", {"max_tokens": 1}),
        ("responses", {"max_output_tokens": 1}),
        ("messages", {"max_tokens": 1}),
        ("vllm_generate", {"sampling_params": {"max_tokens": 1}}),
    ],
)
def test_a_body_without_any_limit_gets_the_cap_and_an_answer_in_one_piece(
    name: str, cap: dict[str, Any]
) -> None:
    assert capped_fields(name, {}) == {**cap, "stream": False}


@pytest.mark.parametrize("odd", ["x", -1, 10**30, None, [], {}, 1.5])
def test_whatever_the_client_put_into_the_capped_fields_is_replaced(odd: Any) -> None:
    fields = {
        "max_tokens": odd,
        "max_completion_tokens": odd,
        "min_tokens": odd,
        "stream": odd,
        "stream_options": odd,
    }
    expected = {"max_tokens": 1, "max_completion_tokens": 1, "stream": False}
    assert capped_fields("chat_completions", fields) == expected


def test_a_cap_field_of_another_api_is_left_alone() -> None:
    fields = {"max_tokens": 9, "max_output_tokens": 8, "max_completion_tokens": 7}
    assert capped_fields("completions", fields) == {**fields, "max_tokens": 1, "stream": False}
    assert capped_fields("responses", fields) == {**fields, "max_output_tokens": 1, "stream": False}


# Sampling parameters that are an object of their own


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (b"null", b'{"max_tokens":1}'),
        (b"{}", b'{"max_tokens":1}'),
        (b'{"max_tokens":null}', b'{"max_tokens":1}'),
        (
            b'{"seed":12345678901234567890,"top_p":1.0}',
            b'{"seed":12345678901234567890,"top_p":1.0,"max_tokens":1}',
        ),
        (b'{"min_tokens":5,"bad_words":["\\ud83d"]}', b'{"bad_words":["\\ud83d"],"max_tokens":1}'),
        (b'{"max_tokens":7,"max_tokens":9,"x":1}', b'{"max_tokens":1,"x":1}'),
        (b'{"max\\u005ftokens":7}', b'{"max_tokens":1}'),
    ],
)
def test_sampling_params_are_copied_with_the_cap_inside(sampling: bytes, expected: bytes) -> None:
    raw = b'{"token_ids":[1],"sampling_params":' + sampling + b"}"
    assert (
        capped_body("vllm_generate", raw)
        == b'{"token_ids":[1],"sampling_params":' + expected + b',"stream":false}'
    )


@pytest.mark.parametrize("sampling", [b"[]", b'"x"', b"1", b"true", b'["max_tokens"]', b"9" * 5000])
def test_sampling_params_that_are_no_object_are_named_in_the_refusal(sampling: bytes) -> None:
    with pytest.raises(BadBody, match="sampling_params"):
        capped_body("vllm_generate", b'{"sampling_params":' + sampling + b"}")


# What only constrains the output is relaxed

# JSON text of "tool_choice" by API: forced ones, and ones that force nothing.
FORCED = [
    ("chat_completions", '"required"'),
    ("chat_completions", '{"type":"function","function":{"name":"f"}}'),
    ("responses", '"required"'),
    ("responses", '{"type":"function","name":"f"}'),
    ("responses", '{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"f"}]}'),
    ("messages", '{"type":"any"}'),
    ("messages", '{"type":"any","disable_parallel_tool_use":true}'),
    ("messages", '{"type":"tool","name":"f"}'),
]
FREE = [
    ("chat_completions", '"auto"'),
    ("chat_completions", '"none"'),
    ("chat_completions", "null"),
    ("responses", '"auto"'),
    ("responses", '"none"'),
    ("messages", '{"type":"auto"}'),
    ("messages", '{ "type":"auto" , "disable_parallel_tool_use":true}'),
    ("messages", '{"type":"none"}'),
    ("messages", "null"),
]
# What leaves the tools in the prompt and forces none of them.
UNFORCED = {"chat_completions": b"null", "responses": b'"auto"', "messages": b'{"type":"auto"}'}


@pytest.mark.parametrize(("name", "choice"), FORCED)
def test_a_forced_tool_is_relaxed_and_the_tools_stay_in_the_prompt(name: str, choice: str) -> None:
    raw = b'{"tools":[ {"type":"function","function":{"name":"f"}} ],"tool_choice":' + choice.encode() + b"}"
    body = Body.parse(capped_body(name, raw))
    assert body["tools"] == b'[ {"type":"function","function":{"name":"f"}} ]'
    assert body["tool_choice"] == UNFORCED[name]


@pytest.mark.parametrize("model", ["moonshotai/Kimi-K3", "kimi_k3-instruct"])
def test_models_whose_prompt_shows_the_constraints_keep_them(model: str) -> None:
    shown = {"model": model, "tool_choice": "required", "response_format": {"type": "json_object"}}
    capped = capped_fields("chat_completions", {**shown, "stop": ["a"], "n": 2})
    assert capped == {**shown, "max_tokens": 1, "max_completion_tokens": 1, "stream": False}


@pytest.mark.parametrize(("name", "choice"), FREE)
def test_a_tool_choice_that_forces_nothing_is_kept_as_it_is(name: str, choice: str) -> None:
    assert (
        Body.parse(capped_body(name, b'{"tool_choice":' + choice.encode() + b"}"))["tool_choice"]
        == choice.encode()
    )


def test_a_tool_choice_is_never_invented() -> None:
    for name in PATHS:
        assert "tool_choice" not in capped_fields(name, {"tools": [{"name": "f"}]})


@pytest.mark.parametrize("name", ["chat_completions", "responses", "messages"])
@pytest.mark.parametrize(
    "choice", [b"9" * 5000, b'{"type":' + b"9" * 5000 + b"}", b'"\\ud83d"', b"[]", b"1", b"true"]
)
def test_a_senseless_tool_choice_is_for_the_engine_to_refuse(name: str, choice: bytes) -> None:
    # 5,000 digits are valid JSON; Python's int() refuses to read more than 4,300.
    try:
        body = Body.parse(capped_body(name, b'{"model":"m","tool_choice":' + choice + b"}"))
    except BadBody:
        return
    assert body["model"] == b'"m"'


@pytest.mark.parametrize("name", ["chat_completions", "completions"])
@pytest.mark.parametrize(
    "field",
    [
        '"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{}}}',
        '"logprobs":true',
        '"logprobs":5',
        '"top_logprobs":5',
        '"n":4',
        '"best_of":4',
        '"logprob_token_ids":[5,6]',
        '"prompt_logprobs":1',
        '"echo":true',
        '"stop":["a"]',
        '"stop_token_ids":[2]',
        '"structured_outputs":{"regex":"[a-z]+"}',
        '"min_tokens":5',
    ],
)
def test_what_only_shapes_the_output_is_left_out(name: str, field: str) -> None:
    plain = capped_fields(name, {"model": "m"})
    assert json.loads(capped_body(name, b'{"model":"m",' + field.encode() + b"}")) == plain


def test_structured_text_of_the_responses_api_is_left_out() -> None:
    fields = {
        "input": "hi",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
        "top_logprobs": 3,
        "include": ["message.output_text.logprobs"],
        "stop": ["a"],
    }
    assert capped_fields("responses", fields) == {"input": "hi", "max_output_tokens": 1, "stream": False}


def test_what_would_make_a_one_token_generation_fail_is_left_out() -> None:
    sampling = {
        **{
            "n": 4,
            "best_of": 4,
            "logprobs": 5,
            "prompt_logprobs": 1,
            "logprob_token_ids": [5],
            "temperature": 0,
        },
        **{"stop": ["a"], "stop_token_ids": [2], "structured_outputs": {"regex": "a"}, "min_new_tokens": 2},
    }
    expected = {"sampling_params": {"temperature": 0, "max_tokens": 1}, "stream": False}
    assert capped_fields("vllm_generate", {"sampling_params": sampling}) == expected


def test_a_thinking_budget_that_is_over_the_cap_is_left_out() -> None:
    # "thinking.budget_tokens must be less than max_tokens", and it is at least 1024.
    fields = {
        "max_tokens": 4096,
        "stop_sequences": ["a"],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    assert capped_fields("messages", fields) == {"max_tokens": 1, "stream": False}


@pytest.mark.parametrize("thinking", ['{"type":"disabled"}', '{ "type":"adaptive" }', "null", "[]", "7"])
def test_thinking_without_a_budget_shapes_the_prompt_and_stays(thinking: str) -> None:
    body = Body.parse(capped_body("messages", b'{"max_tokens":9,"thinking":' + thinking.encode() + b"}"))
    assert body["thinking"] == thinking.encode()


PROMPT_SHAPING = {
    "chat_completions": "model messages tools chat_template chat_template_kwargs add_generation_prompt "
    "continue_final_message add_special_tokens documents mm_processor_kwargs reasoning_effort cache_salt "
    "truncate_prompt_tokens include_reasoning temperature seed priority metadata cache_hit_threshold",
    "completions": "model prompt prompt_embeds suffix add_special_tokens truncate_prompt_tokens seed",
    "responses": "model input instructions tools reasoning truncation cache_salt prompt metadata store",
    "messages": "model messages system tools thinking output_config chat_template_kwargs metadata top_k",
    "vllm_generate": "model token_ids features cache_salt priority request_id",
    "sglang_generate": "text input_ids image_data lora_path routed_dp_rank disagg_prefill_dp_rank",
}


@pytest.mark.parametrize("name", PATHS)
def test_what_shapes_the_prompt_is_kept_byte_for_byte(name: str) -> None:
    keys = PROMPT_SHAPING[name].split()
    value = b'{ "zebra" : [1.0, 1e-7] ,"apple":"\\ud83d"}'
    raw = b"{" + b",".join(b'"%s":%s' % (key.encode(), value) for key in keys) + b"}"
    body = Body.parse(capped_body(name, raw))
    assert [(key, body[key]) for key in body if key in keys] == [(key, value) for key in keys]


@pytest.mark.parametrize("name", PATHS)
def test_the_cap_is_deterministic_and_capping_twice_changes_nothing_more(name: str) -> None:
    once = capped_body(name, CHAT)
    assert capped_body(name, CHAT) == once
    assert capped_body(name, once) == once


def test_anthropics_api_is_the_only_one_with_anthropics_errors() -> None:
    assert [api.name for api in apis.APIS if api.anthropic] == ["messages"]


def test_an_api_is_one_row_that_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Api("x", b"/x").name = "y"  # type: ignore[misc]  # frozen


# Legs that only their cap may end


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("chat_completions", b'{"stop_token_ids":[1],"stop":"x"}', b'{"stop":"x","ignore_eos":true}'),
        ("completions", b'{"ignore_eos":false,"prompt":"hi"}', b'{"ignore_eos":true,"prompt":"hi"}'),
        ("responses", b'{"input":"hi"}', b'{"input":"hi","ignore_eos":true}'),
        ("messages", b'{"stop_sequences":["x"]}', b'{"stop_sequences":["x"]}'),
        ("vllm_generate", b'{"sampling_params":null}', b'{"sampling_params":{"ignore_eos":true}}'),
        (
            "sglang_generate",
            b'{"sampling_params":{"stop_token_ids":[1],"top_p":1.0}}',
            b'{"sampling_params":{"top_p":1.0,"ignore_eos":true}}',
        ),
    ],
)
def test_without_stop_tokens_a_leg_ends_at_its_cap(name: str, raw: bytes, expected: bytes) -> None:
    body = Body.parse(raw)
    assert body.edited(apis.stopless(BY_NAME[name], body)).encode() == expected


def test_sampling_params_that_are_no_object_cannot_be_made_stopless() -> None:
    with pytest.raises(BadBody, match="sampling_params"):
        apis.stopless(BY_NAME["vllm_generate"], Body.parse(b'{"sampling_params":[]}'))
