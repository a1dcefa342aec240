"""The HTTP API: shapes and key orders of vLLM 0.32 (as its real answers have them), and its refusals."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from sidecar.lab import Engine
from tests.lab.bench import Json, complete, make_engine, post, prompt, words

CHAT_KEYS = words(
    "id object created model choices service_tier system_fingerprint usage prompt_logprobs prompt_token_ids"
    " prompt_text kv_transfer_params ec_transfer_params metrics"
)
CHAT_CHOICE_KEYS = words("index message logprobs finish_reason stop_reason token_ids routed_experts")
COMPLETION_KEYS = words(
    "id object created model choices service_tier system_fingerprint usage"
    " kv_transfer_params ec_transfer_params"
    " metrics"
)
COMPLETION_CHOICE_KEYS = words(
    "index text logprobs finish_reason stop_reason token_ids prompt_logprobs prompt_token_ids routed_experts"
)
USAGE_KEYS = words(
    "prompt_tokens total_tokens completion_tokens prompt_tokens_details completion_tokens_details"
)
RESPONSE_KEYS = words(
    "id created_at incomplete_details instructions metadata model object output"
    " parallel_tool_calls temperature"
    " tool_choice tools top_p background max_output_tokens max_tool_calls"
    " previous_response_id prompt reasoning"
    " service_tier status text top_logprobs truncation usage user presence_penalty frequency_penalty"
    " kv_transfer_params ec_transfer_params input_messages output_messages"
)
GENERATE_KEYS = words(
    "request_id model created usage prompt_logprobs prompt_token_id_logprobs prompt_token_ids mm_placeholders"
    " metrics kv_transfer_params ec_transfer_params output_mode choices"
)
MESSAGES = [{"role": "user", "content": "What is cached?"}]
CHAT = {"model": "tiny", "messages": MESSAGES, "ignore_eos": True, "max_tokens": 4}


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with make_engine() as started:
        yield started


async def events(engine: Engine, path: str, body: Json) -> list[str]:
    response = await post(engine, path, body | {"stream": True})
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.text.endswith("\n\n")
    return response.text.removesuffix("\n\n").split("\n\n")


async def chunks(engine: Engine, path: str, body: Json) -> list[Json]:
    *sent, done = await events(engine, path, body)
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in sent]


async def test_a_chat_answer_has_vllms_shape(engine: Engine) -> None:
    response = await post(engine, "/v1/chat/completions", CHAT, **{"x-request-id": "lab-req-1"})
    answer = response.json()
    assert list(answer) == CHAT_KEYS
    assert answer["id"] == "chatcmpl-lab-req-1"
    assert answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert list(choice) == CHAT_CHOICE_KEYS
    assert list(choice["message"]) == (
        words("role content refusal annotations audio function_call reasoning")
    )
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["content"].split()) == 4
    assert list(answer["usage"]) == USAGE_KEYS
    assert answer["usage"]["prompt_tokens"] == 17
    assert answer["usage"]["total_tokens"] == 21
    assert answer["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 0,
        "created_cache_tokens": 0,
        "multimodal_tokens": None,
    }
    assert answer["kv_transfer_params"] is None
    assert b": " not in response.content.split(b'"content"')[0]


async def test_a_completion_answer_has_vllms_shape(engine: Engine) -> None:
    answer = await complete(engine, prompt(10), max_tokens=8)
    assert list(answer) == COMPLETION_KEYS
    assert answer["id"].startswith("cmpl-")
    assert list(answer["choices"][0]) == COMPLETION_CHOICE_KEYS
    assert answer["usage"]["prompt_tokens"] == 161
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["usage"]["prompt_tokens_details"]["created_cache_tokens"] is None


async def test_prompt_tokens_details_are_null_unless_the_engine_reports_them() -> None:
    async with make_engine(enable_prompt_tokens_details=False) as engine:
        answer = await complete(engine, prompt(10))
        assert answer["usage"]["prompt_tokens_details"] is None


async def test_blocks_made_for_the_cache_are_reported_for_chat(engine: Engine) -> None:
    body = CHAT | {"messages": [{"role": "user", "content": "The quick brown fox jumps. " * 12}]}
    first = (await post(engine, "/v1/chat/completions", body)).json()["usage"]
    again = (await post(engine, "/v1/chat/completions", body)).json()["usage"]
    assert first["prompt_tokens_details"]["created_cache_tokens"] == first["prompt_tokens"] // 32 * 32 > 0
    assert again["prompt_tokens_details"]["created_cache_tokens"] == 0
    assert again["prompt_tokens_details"]["cached_tokens"] == first["prompt_tokens"] // 32 * 32


async def test_token_ids_are_returned_on_request(engine: Engine) -> None:
    answer = (await post(engine, "/v1/chat/completions", CHAT | {"return_token_ids": True})).json()
    assert len(answer["prompt_token_ids"]) == 17
    assert len(answer["choices"][0]["token_ids"]) == 4


async def test_a_chat_stream_has_vllms_shape(engine: Engine) -> None:
    sent = await chunks(engine, "/v1/chat/completions", CHAT | {"stream_options": {"include_usage": True}})
    role, first, *_, last, usage = sent
    assert len(sent) == 1 + 4 + 1
    assert list(role) == words("id object created model choices prompt_token_ids prompt_text")
    assert role["object"] == "chat.completion.chunk"
    assert role["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert list(first) == words("id object created model choices")
    assert list(first["choices"][0]) == words("index delta logprobs finish_reason token_ids")
    assert list(last["choices"][0]) == words("index delta logprobs finish_reason stop_reason token_ids")
    assert last["choices"][0]["finish_reason"] == "length"
    assert list(usage) == words("id object created model choices usage system_fingerprint")
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 17,
        "total_tokens": 21,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0, "created_cache_tokens": 0},
    }
    whole = (await post(engine, "/v1/chat/completions", CHAT)).json()
    said = "".join(chunk["choices"][0]["delta"]["content"] for chunk in sent[:-1])
    assert said == whole["choices"][0]["message"]["content"]


async def test_a_completion_stream_has_vllms_shape(engine: Engine) -> None:
    body = {"prompt": "hello", "max_tokens": 3, "ignore_eos": True}
    sent = await chunks(engine, "/v1/completions", body)
    assert len(sent) == 3
    assert all(list(chunk) == words("id object created model choices") for chunk in sent)
    assert list(sent[0]["choices"][0]) == (
        words("index text logprobs finish_reason stop_reason prompt_token_ids token_ids")
    )
    assert [chunk["choices"][0]["finish_reason"] for chunk in sent] == [None, None, "length"]
    whole = (await post(engine, "/v1/completions", body)).json()
    assert "".join(chunk["choices"][0]["text"] for chunk in sent) == whole["choices"][0]["text"]


async def test_continuous_usage_is_in_every_chunk(engine: Engine) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    sent = await chunks(engine, "/v1/chat/completions", CHAT | {"stream_options": options})
    assert [chunk["usage"]["completion_tokens"] for chunk in sent] == [1, 1, 2, 3, 4, 4]


async def test_a_response_has_vllms_shape(engine: Engine) -> None:
    body = {"model": "tiny", "input": "What is cached?", "max_output_tokens": 4, "ignore_eos": True}
    answer = (await post(engine, "/v1/responses", body)).json()
    assert list(answer) == RESPONSE_KEYS
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["usage"]["input_tokens"] == 17
    assert answer["usage"]["output_tokens"] == 4
    assert list(answer["output"][0]) == words("id content role status type phase")


async def test_a_response_stream_ends_with_the_whole_response(engine: Engine) -> None:
    body = {"model": "tiny", "input": "What is cached?", "max_output_tokens": 2, "ignore_eos": True}
    sent = await events(engine, "/v1/responses", body)
    pairs = [event.split("\n") for event in sent]
    names = [name.removeprefix("event: response.") for name, _ in pairs]
    assert names == words(
        "created in_progress output_item.added content_part.added output_text.delta output_text.delta"
        " output_text.done content_part.done output_item.done incomplete"
    )
    values = [json.loads(line.removeprefix("data: ")) for _, line in pairs]
    assert [value["sequence_number"] for value in values] == list(range(10))
    assert values[-1]["response"]["usage"]["total_tokens"] == 19
    assert list(values[-1]["response"]) == RESPONSE_KEYS


async def test_a_message_has_vllms_shape(engine: Engine) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4, "ignore_eos": True}
    answer = (await post(engine, "/v1/messages", body)).json()
    assert list(answer) == words("id type role content model stop_reason usage")
    assert answer["stop_reason"] == "max_tokens"
    assert answer["usage"] == {
        "input_tokens": 17,
        "output_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


async def test_a_message_counts_cached_tokens_beside_its_input(engine: Engine) -> None:
    said = [{"role": "user", "content": "The quick brown fox jumps. " * 12}]
    body = {"model": "tiny", "messages": said, "max_tokens": 4, "ignore_eos": True}
    counted = (await post(engine, "/v1/messages/count_tokens", body)).json()
    prompt_tokens = counted["input_tokens"]
    assert counted["context_management"] == {"original_input_tokens": prompt_tokens}
    whole_blocks = prompt_tokens // 32 * 32
    rest = {"input_tokens": prompt_tokens - whole_blocks, "output_tokens": 4}
    first = (await post(engine, "/v1/messages", body)).json()["usage"]
    assert first == rest | {"cache_creation_input_tokens": whole_blocks, "cache_read_input_tokens": 0}
    sent = await events(engine, "/v1/messages", body)
    values = [json.loads(event.partition("data: ")[2]) for event in sent[:-1]]
    assert values[0]["message"]["usage"] == {"input_tokens": prompt_tokens, "output_tokens": 0}
    assert values[-2]["usage"] == (
        rest | {"cache_creation_input_tokens": 0, "cache_read_input_tokens": whole_blocks}
    )


async def test_a_message_says_nothing_of_caches_unless_the_engine_reports_them() -> None:
    async with make_engine(enable_prompt_tokens_details=False) as engine:
        body = {"messages": MESSAGES, "max_tokens": 4, "ignore_eos": True}
        answer = (await post(engine, "/v1/messages", body)).json()
        assert answer["usage"] == {"input_tokens": 17, "output_tokens": 4}


async def test_a_message_names_the_stop_sequence_that_ended_it(engine: Engine) -> None:
    body = {"messages": MESSAGES, "max_tokens": 8, "ignore_eos": True}
    said = (await post(engine, "/v1/messages", body)).json()["content"][0]["text"]
    stop = said.split()[2]
    answer = (await post(engine, "/v1/messages", body | {"stop_sequences": [stop]})).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", stop)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_errors_of_messages_are_anthropics_but_for_those_of_validation(
    engine: Engine, path: str
) -> None:
    unknown = await post(engine, path, {"model": "nope", "messages": MESSAGES, "max_tokens": 4})
    assert unknown.status_code == 404
    assert unknown.json() == {
        "type": "error",
        "error": {
            "type": "NotFoundError",
            "message": "The model `nope` does not exist. Valid aliases: tiny.",
        },
    }
    invalid = await post(engine, path, {"model": "tiny", "max_tokens": 4})
    assert invalid.status_code == 400
    assert list(invalid.json()["error"]) == ["message", "type", "param", "code"]


async def test_a_response_after_another_one_is_404(engine: Engine) -> None:
    response = await post(engine, "/v1/responses", {"input": "x", "previous_response_id": "resp_1"})
    assert response.status_code == 404
    assert response.json()["error"] == {
        "message": "Response with id 'resp_1' not found.",
        "type": "invalid_request_error",
        "param": "response_id",
        "code": 404,
    }


async def test_a_message_stream_has_anthropics_events(engine: Engine) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 2, "ignore_eos": True}
    *sent, done = await events(engine, "/v1/messages", body)
    assert done == "data: [DONE]"
    assert [event.split("\n")[0].removeprefix("event: ") for event in sent] == words(
        "message_start content_block_start content_block_delta content_block_delta content_block_stop"
        " message_delta message_stop"
    )


async def test_generate_answers_in_token_ids(engine: Engine) -> None:
    body = {
        "model": "tiny",
        "token_ids": prompt(10),
        "sampling_params": {"max_tokens": 4, "ignore_eos": True},
    }
    answer = (await post(engine, "/inference/v1/generate", body)).json()
    assert list(answer) == GENERATE_KEYS
    assert answer["request_id"].startswith("generate-tokens-")
    assert len(answer["choices"][0]["token_ids"]) == 4


async def test_a_generate_stream_has_one_event_per_token(engine: Engine) -> None:
    body: Json = {"token_ids": prompt(10), "sampling_params": {"max_tokens": 3, "ignore_eos": True}}
    whole = (await post(engine, "/inference/v1/generate", body)).json()
    body["stream_options"] = {"include_usage": True}
    *tokens, usage = await chunks(engine, "/inference/v1/generate", body)
    made = [{"version": "default", "start": 0, "end": 3}]
    assert [token["choices"][0] for token in tokens] == [
        {
            "index": 0,
            "finish_reason": "length" if last else None,
            "stop_reason": None,
            "token_ids": [token_id],
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": made if last else None,
            "logprobs": None,
        }
        for token_id, last in zip(whole["choices"][0]["token_ids"], (False, False, True), strict=True)
    ]
    assert list(tokens[0]) == words("request_id usage output_mode choices")
    assert (tokens[0]["usage"], tokens[0]["output_mode"]) == (None, "tokens")
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 161,
        "total_tokens": 164,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 160},
    }


async def test_generate_is_forbidden_without_its_flag() -> None:
    async with make_engine(enable_scale_out=False) as engine:
        assert (await post(engine, "/inference/v1/generate", {"token_ids": [5]})).status_code == 403


async def test_several_answers_and_prompts_are_choices_in_order(engine: Engine) -> None:
    body = {"prompt": [prompt(10), prompt(11)], "n": 2, "max_tokens": 3, "ignore_eos": True}
    answer = (await post(engine, "/v1/completions", body)).json()
    said = [choice["text"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert len(set(said)) == 4
    assert said[0] == (await complete(engine, prompt(10), max_tokens=3))["choices"][0]["text"]
    assert answer["usage"]["prompt_tokens"] == 322
    assert answer["usage"]["completion_tokens"] == 12


async def test_a_stop_string_ends_the_answer(engine: Engine) -> None:
    whole = (await complete(engine, prompt(10), max_tokens=8))["choices"][0]["text"]
    third = whole.split()[2]
    choice = (await complete(engine, prompt(10), max_tokens=8, stop=[third]))["choices"][0]
    assert choice["text"] == whole[: whole.index(third)]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == third


async def test_an_answer_without_a_limit_ends_by_itself(engine: Engine) -> None:
    answer = (await post(engine, "/v1/chat/completions", {"messages": MESSAGES})).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] > 32


async def test_min_tokens_put_off_the_end(engine: Engine) -> None:
    body = {"messages": MESSAGES, "min_tokens": 1000}
    answer = (await post(engine, "/v1/chat/completions", body)).json()
    assert answer["usage"]["completion_tokens"] > 1000


@pytest.mark.parametrize(
    ("path", "change", "error"),
    [
        (
            "/v1/chat/completions",
            {"model": "nope"},
            {
                "message": "The model `nope` does not exist. Valid aliases: tiny.",
                "type": "NotFoundError",
                "param": "model",
                "code": 404,
            },
        ),
        (
            "/v1/chat/completions",
            {"kv_transfer_params": "notadict"},
            {
                "message": "1 validation error:\n  {'type': 'dict_type', 'loc': 'body.kv_transfer_params',"
                " 'msg': 'Input should be a valid dictionary', 'input': 'notadict'}",
                "type": "Bad Request",
                "param": "body.kv_transfer_params",
                "code": 400,
            },
        ),
        (
            "/v1/chat/completions",
            {"max_tokens": 100000},
            {
                "message": "max_tokens=100000 cannot be greater than max_model_len=4096. Please request"
                " fewer output tokens. (parameter=max_tokens, value=100000)",
                "type": "BadRequestError",
                "param": "max_tokens",
                "code": 400,
            },
        ),
    ],
)
async def test_refusals_are_vllms(engine: Engine, path: str, change: Json, error: Json) -> None:
    response = await post(engine, path, CHAT | change)
    assert response.status_code == error["code"]
    assert response.json() == {"error": error}


@pytest.mark.parametrize(
    "change",
    [
        {"messages": []},
        {"messages": None},
        {"max_tokens": "4"},
        {"max_tokens": 0},
        {"max_tokens": True},
        {"min_tokens": 5},
        {"n": 0},
        {"n": 2, "temperature": 0},
        {"stop": [""]},
        {"stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": 5},
        {"logprobs": True},
        {"kv_transfer_params": [1]},
        {"kv_transfer_params": ""},
        {"vllm_xargs": {"kv_transfer_params": "x"}},
        {"vllm_xargs": "x"},
    ],
)
async def test_bad_fields_are_400(engine: Engine, change: Json) -> None:
    response = await post(engine, "/v1/chat/completions", CHAT | change)
    assert response.status_code == 400
    assert list(response.json()["error"]) == ["message", "type", "param", "code"]


@pytest.mark.parametrize("value", [None, [], {}, 5, ["x", 5], [[-1]], [1 << 17], [True]])
async def test_bad_prompts_are_400(engine: Engine, value: object) -> None:
    assert (await post(engine, "/v1/completions", {"prompt": value})).status_code == 400


async def test_a_prompt_that_does_not_fit_is_400(engine: Engine) -> None:
    response = await post(engine, "/v1/completions", {"prompt": prompt(10, 4090), "max_tokens": 7})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input_tokens"
    assert (
        await post(engine, "/v1/completions", {"prompt": prompt(10, 4090), "max_tokens": 6})
    ).status_code == 200


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b'"x"', b"{", b'{"a":1}x', b"[" * 100_000, b"\xff"])
async def test_a_body_that_is_no_object_is_400(engine: Engine, content: bytes) -> None:
    async with httpx.AsyncClient(verify=False) as client:
        headers = {"content-type": "application/json"}
        response = await client.post(f"{engine.url}/v1/completions", content=content, headers=headers)
        assert response.status_code == 400


async def test_only_json_is_taken(engine: Engine) -> None:
    async with httpx.AsyncClient(verify=False) as client:
        response = await client.post(f"{engine.url}/v1/completions", content=b'{"prompt":"x"}')
        assert response.status_code == 400
        assert "Only 'application/json' is allowed" in response.text


async def test_the_other_paths_answer_as_vllms(engine: Engine) -> None:
    async with httpx.AsyncClient(base_url=engine.url, verify=False) as client:
        health = await client.get("/health")
        assert (health.status_code, health.content) == (200, b"")
        assert (await client.get("/version")).json() == {"version": "0.32.0"}
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert (model["id"], model["max_model_len"]) == ("tiny", 4096)
        metrics = await client.get("/metrics")
        assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        missing = await client.get("/nothing")
        assert missing.json() == {
            "error": {"message": "Not Found", "type": "Not Found", "param": None, "code": 404}
        }
        assert (await client.get("/v1/completions")).status_code == 405


async def test_a_conversation_finds_the_blocks_of_its_own_last_answer(engine: Engine) -> None:
    body: dict[str, Any] = CHAT | {"max_tokens": 200}
    first = (await post(engine, "/v1/chat/completions", body)).json()
    held = first["usage"]["total_tokens"] - 1
    turns = [*MESSAGES, first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    second = (await post(engine, "/v1/chat/completions", body | {"messages": turns})).json()
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == held // 32 * 32
