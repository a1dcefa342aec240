"""What the server span says in OpenTelemetry's words for generative AI."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.api import APIS
from sidecar.observers.genai import MAX_MODEL_BYTES, attributes
from sidecar.observers.records import ExchangeRecord
from sidecar.plan import Role
from sidecar.routing import Route
from tests.observers.play import DECODER, chat, leg, stage

BASE = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm"}


def counted(*figures: tuple[int | None, int | None], **fields: Any) -> ExchangeRecord:
    """A chat whose legs reported these prompt and cached tokens."""
    record = chat(Route(DECODER), **fields)
    for prompt_tokens, cached_tokens in figures:
        one = leg(record, Role.DECODE, 100.0)
        one.prompt_tokens, one.cached_tokens = prompt_tokens, cached_tokens
    return record


@pytest.mark.parametrize(
    ("name", "operation", "provider"),
    [
        ("chat_completions", "chat", "vllm"),
        ("completions", "text_completion", "vllm"),
        ("responses", "chat", "vllm"),
        ("messages", "chat", "vllm"),
        ("vllm_generate", "text_completion", "vllm"),
        ("sglang_generate", "text_completion", "sglang"),
    ],
)
def test_every_routed_api_has_an_operation_and_its_engine_is_the_provider(
    name: str, operation: str, provider: str
) -> None:
    record = chat(None, api=next(api for api in APIS if api.name == name))
    expected = {"gen_ai.operation.name": operation, "gen_ai.provider.name": provider}
    assert attributes(record, "nixlv2") == expected


def test_behind_its_own_connector_sglang_is_the_provider_of_a_chat() -> None:
    assert attributes(chat(None), "sglang") == BASE | {"gen_ai.provider.name": "sglang"}


def test_a_path_that_is_not_routed_says_nothing() -> None:
    assert attributes(chat(None, api=None, path="/v1/embeddings", model=b'"m"'), "nixlv2") == {}


@pytest.mark.parametrize(
    ("raw", "model"),
    [
        (b'"org/m"', "org/m"),
        (b'"org\\/m"', "org/m"),
        ('"mödel"'.encode(), "mödel"),
        (b'""', ""),
        (b'"' + b"m" * (MAX_MODEL_BYTES - 2) + b'"', "m" * (MAX_MODEL_BYTES - 2)),
        (b'"' + b"m" * (MAX_MODEL_BYTES - 1) + b'"', None),
        (b"null", None),
        (b"7", None),
        (b'["m"]', None),
        (b'"\\ud83d"', None),
        (b'"a\\nb"', None),
        (None, None),
    ],
)
def test_the_model_is_told_when_it_is_a_name(raw: bytes | None, model: str | None) -> None:
    expected = BASE if model is None else BASE | {"gen_ai.request.model": model}
    assert attributes(chat(None, model=raw), "nixlv2") == expected


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ([(None, None)], {}),
        ([(70, None)], {"input_tokens": 70}),
        ([(70, 64)], {"input_tokens": 70, "cache_read.input_tokens": 64}),
        ([(70, 0), (90, 70)], {"input_tokens": 70, "cache_read.input_tokens": 0}),
        ([(None, None), (70, 64)], {"input_tokens": 70, "cache_read.input_tokens": 64}),
    ],
)
def test_tokens_of_the_prompt_are_those_of_the_first_leg_that_has_them(
    figures: list[tuple[int | None, int | None]], expected: dict[str, int]
) -> None:
    told = {f"gen_ai.usage.{name}": value for name, value in expected.items()}
    assert attributes(counted(*figures), "nixlv2") == BASE | told


def test_output_tokens_are_told_where_a_plan_has_counted_them() -> None:
    record = counted(completion_tokens=12)
    assert attributes(record, "nixlv2") == BASE | {"gen_ai.usage.output_tokens": 12}


def test_the_server_span_carries_them() -> None:
    watched = stage()
    with watched.tracing.exchange(chat(Route(DECODER), model=b'"m"')):
        pass
    [server] = watched.trees()
    told = {key: value for key, value in server.attributes.items() if key.startswith("gen_ai.")}
    assert told == BASE | {"gen_ai.request.model": "m"}
