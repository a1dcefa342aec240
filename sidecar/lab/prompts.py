"""Where each API keeps its prompt, and how it becomes token ids.

Rule: pure; returns at least one prompt of at least one token, or raises ApiError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sidecar.lab.chat import render
from sidecar.lab.faults import INVALID, ApiError
from sidecar.lab.tokens import VOCABULARY_TOKENS, encode

Body = Mapping[str, object]
Prompts = list[list[int]]


def chat_prompt(body: Body) -> Prompts:
    """/v1/chat/completions."""
    return [render(body.get("messages"), body)]


def completion_prompts(body: Body) -> Prompts:
    """/v1/completions: a text, token ids, or several of either."""
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [_not_empty(encode(prompt))]
    if not isinstance(prompt, Sequence) or not prompt:
        raise ApiError("prompt must be a string, token ids, or a non-empty array of either", param="prompt")
    if all(isinstance(item, int) for item in prompt):
        return [_token_ids(prompt)]
    return [_not_empty(encode(item)) if isinstance(item, str) else _token_ids(item) for item in prompt]


def response_prompt(body: Body) -> Prompts:
    """/v1/responses: `instructions`, then `input` as one user message or as items."""
    asked = body.get("input")
    items = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    if not isinstance(items, Sequence):
        raise ApiError("input must be a string or an array of items", param="input")
    return [render([*_system(body.get("instructions")), *items], body)]


def message_prompt(body: Body) -> Prompts:
    """/v1/messages: `system`, then the messages."""
    if body.get("max_tokens") is None:
        raise ApiError("max_tokens is required", kind=INVALID, param="max_tokens")
    return [message_ids(body)]


def message_ids(body: Body) -> list[int]:
    """The same for /v1/messages/count_tokens, which needs no limit."""
    messages = body.get("messages")
    if not isinstance(messages, Sequence):
        raise ApiError("messages are required", kind=INVALID, param="messages")
    return render([*_system(body.get("system")), *messages], body)


def generate_prompt(body: Body) -> Prompts:
    """/inference/v1/generate: token ids."""
    return [_token_ids(body.get("token_ids"))]


PROMPT_READERS: dict[str, Callable[[Body], Prompts]] = {
    "chat_completions": chat_prompt,
    "completions": completion_prompts,
    "responses": response_prompt,
    "messages": message_prompt,
    "vllm_generate": generate_prompt,
}


def _system(text: object) -> list[dict[str, object]]:
    return [{"role": "system", "content": text}] if text else []


def _token_ids(value: object) -> list[int]:
    if not isinstance(value, Sequence) or not all(
        isinstance(item, int) and not isinstance(item, bool) for item in value
    ):
        raise ApiError("token ids must be an array of integers", kind=INVALID, param="prompt")
    for item in value:
        if not 0 <= item < VOCABULARY_TOKENS:
            raise ApiError(f"Token id {item} is out of vocabulary", param="prompt")
    return _not_empty(list(value))


def _not_empty(ids: list[int]) -> list[int]:
    if not ids:
        raise ApiError("The decoder prompt cannot be empty", param="prompt")
    return ids
