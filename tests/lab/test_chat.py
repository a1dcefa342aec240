"""The chat template."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.lab.chat import render
from sidecar.lab.faults import ApiError
from sidecar.lab.tokens import TURN_END, TURN_START, encode

USER = {"role": "user", "content": "What is cached?"}
BASE: dict[str, Any] = {"messages": [USER]}


def tokens_of(body: dict[str, Any]) -> list[int]:
    return render(body["messages"], body)


def test_a_conversation_is_its_turns_and_the_beginning_of_the_next() -> None:
    assert tokens_of(BASE) == [
        TURN_START,
        *encode("user\n"),
        *encode("What is cached?"),
        TURN_END,
        *encode("\n"),
        TURN_START,
        *encode("assistant\n"),
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [{"role": "system", "content": "Be brief."}, USER]},
        {"messages": [USER | {"role": "developer"}]},
        {"messages": [USER | {"name": "ann"}]},
        {"messages": [USER | {"content": [{"type": "text", "text": "What is cold?"}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"documents": [{"text": "d"}]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "low"},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
    ],
)
def test_what_shapes_the_prompt_changes_the_tokens(change: dict[str, Any]) -> None:
    assert tokens_of(BASE | change) != tokens_of(BASE)


@pytest.mark.parametrize(
    "change",
    [
        {"stream": True, "stream_options": {"include_usage": True}},
        {"max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 1},
        {"tool_choice": "required", "parallel_tool_calls": False},
        {"response_format": {"type": "json_object"}, "temperature": 0.5, "n": 3, "stop": ["x"]},
        {"kv_transfer_params": {"do_remote_decode": True}},
    ],
)
def test_what_does_not_shape_the_prompt_leaves_the_tokens(change: dict[str, Any]) -> None:
    assert tokens_of(BASE | change) == tokens_of(BASE)


def test_text_as_a_string_or_as_a_part_is_the_same_prompt() -> None:
    parts = {"messages": [USER | {"content": [{"type": "text", "text": "What is cached?"}]}]}
    assert tokens_of(parts) == tokens_of(BASE)


def test_an_image_is_one_token_and_its_url_counts() -> None:
    def with_image(url: str) -> list[int]:
        image = {"type": "image_url", "image_url": {"url": url}}
        return tokens_of(
            {"messages": [USER | {"content": [{"type": "text", "text": "What is cached?"}, image]}]}
        )

    assert len(with_image("http://127.0.0.1/a")) == len(tokens_of(BASE)) + 1
    assert with_image("http://127.0.0.1/a") != with_image("http://127.0.0.1/b")


def test_the_next_turn_begins_with_the_tokens_of_the_last_one() -> None:
    answer = {"role": "assistant", "content": " bab dod"}
    longer = tokens_of({"messages": [USER, answer, USER]})
    assert longer[: len(tokens_of(BASE)) + 2] == [*tokens_of(BASE), *encode(" bab dod")]


@pytest.mark.parametrize(
    "messages",
    [None, "hello", [], ["hello"], [{"role": 1}], [USER | {"content": 1}], [USER | {"content": [1]}]],
)
def test_what_is_no_conversation_is_refused(messages: object) -> None:
    with pytest.raises(ApiError) as refusal:
        render(messages, {})
    assert refusal.value.status == 400
