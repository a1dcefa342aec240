"""Asks for completions over each of the five APIs, and reads text and usage out of their answers.

Rule: one table; a prompt is fresh tokens every time, so that no cache can answer for an earlier test.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tests.vllm.engines import BLOCK_TOKENS, MODEL_NAME

# Nothing here takes a second on an idle machine; engines that share two busy cores are given time.
ANSWER_TIMEOUT_S = 60.0
ANSWER_TOKENS = 12
# Ids 0 to 4 are the tokenizer's special tokens; every other of 512 is a piece of text.
_ORDINARY_TOKENS = range(5, 400)

Body = dict[str, Any]
_chance = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer that has been read whole. events: the `data:` lines of a stream but `[DONE]`."""

    status: int
    headers: httpx.Headers
    content: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.content)

    @property
    def streamed(self) -> bool:
        """Whether it is an SSE stream."""
        return str(self.headers.get("content-type")).startswith("text/event-stream")

    @property
    def events(self) -> list[Any]:
        """The events of a stream; the one document of another answer."""
        if not self.streamed:
            return [self.json]
        lines = self.content.decode().splitlines()
        payloads = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
        return [json.loads(payload) for payload in payloads if payload != "[DONE]"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer says of its prompt. cached_tokens: None where it says nothing."""

    prompt_tokens: int
    cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class Api:
    """One API.

    ask(prompt): the fields that carry a prompt of about so many tokens. text(event): the piece of text in an
    event or document. usage(events): the usage. plain: fields that make the answer long and certain.
    """

    name: str
    path: str
    ask: Callable[[int], Body]
    plain: Mapping[str, Any]
    text: Callable[[Any], str]
    usage: Callable[[Any], Usage | None]
    stream_fields: Mapping[str, Any]

    def body(self, prompt_tokens: int, *, stream: bool = False, **more: Any) -> Body:
        """A request with a fresh prompt."""
        fields = {"model": MODEL_NAME, **self.ask(prompt_tokens), **self.plain, **more}
        return {**fields, "stream": True, **self.stream_fields} if stream else fields

    def text_of(self, answer: Answer) -> str:
        """The whole text, or the token ids as text where the API answers with ids."""
        return "".join(self.text(event) for event in answer.events)

    def usage_of(self, answer: Answer) -> Usage:
        """The usage in the last event that has one."""
        found = [usage for event in answer.events if (usage := self.usage(event))]
        return found[-1]


def post(url: str, path: str, body: Body, headers: Mapping[str, str] | None = None) -> Answer:
    """POST a JSON body and read the whole answer."""
    answer = httpx.post(url + path, json=body, headers=headers, timeout=ANSWER_TIMEOUT_S)
    return Answer(answer.status_code, answer.headers, answer.content)


def fresh_ids(tokens: int) -> list[int]:
    """Token ids that no prompt had before."""
    return _chance.choices(_ORDINARY_TOKENS, k=tokens)


def fresh_text(tokens: int) -> str:
    """A text of about so many tokens; each word is one or two."""
    words = ("pod", "block", "prefix", "engine", "router", "value", "decode", "network")
    return f"{_chance.getrandbits(64):x} " + " ".join(_chance.choices(words, k=tokens // 2))


def pulled_tokens(prompt_tokens: int) -> int:
    """How much of a prompt a peer can give: whole blocks, and at least one token is computed here."""
    return (prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def handed_tokens(prompt_tokens: int) -> int:
    """How much of a prompt a P2P prefiller hands over: whole blocks, the last one too (seen on vLLM 0.32)."""
    return prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS


def _choice_text(event: Any, *path: str) -> str:
    choices = event.get("choices") or [{}]
    value: Any = choices[0]
    for key in path:
        value = (value or {}).get(key)
    return value or ""


def _openai_usage(event: Any) -> Usage | None:
    usage = (event.get("response") or event).get("usage")
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    prompt_tokens = usage.get("prompt_tokens", usage.get("input_tokens"))
    return Usage(prompt_tokens, details.get("cached_tokens"))


def _anthropic_usage(event: Any) -> Usage | None:
    """Anthropic counts cached tokens beside `input_tokens`, not within."""
    usage = event.get("usage")
    if not usage or "input_tokens" not in usage:
        return None
    cached = usage.get("cache_read_input_tokens")
    new = usage["input_tokens"] + (usage.get("cache_creation_input_tokens") or 0)
    return Usage(new + (cached or 0), cached)


def _chat_text(event: Any) -> str:
    return _choice_text(event, "message", "content") + _choice_text(event, "delta", "content")


def _responses_text(event: Any) -> str:
    if "type" in event:
        return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""
    return "".join(part["text"] for item in event["output"] for part in item["content"])


def _messages_text(event: Any) -> str:
    if event["type"] == "message":
        return "".join(part["text"] for part in event["content"])
    return str(event.get("delta", {}).get("text", ""))


def _generate_text(event: Any) -> str:
    choices = event.get("choices") or [{}]
    return "".join(f"{token} " for token in choices[0].get("token_ids") or ())


def _user(tokens: int) -> Body:
    return {"messages": [{"role": "user", "content": fresh_text(tokens)}]}


_WITH_USAGE = {"stream_options": {"include_usage": True}}
_CERTAIN = {"temperature": 0, "ignore_eos": True, "max_tokens": ANSWER_TOKENS}

APIS: dict[str, Api] = {
    api.name: api
    for api in (
        Api("chat", "/v1/chat/completions", _user, _CERTAIN, _chat_text, _openai_usage, _WITH_USAGE),
        Api(
            "completions",
            "/v1/completions",
            lambda tokens: {"prompt": fresh_ids(tokens)},
            _CERTAIN,
            lambda event: _choice_text(event, "text"),
            _openai_usage,
            _WITH_USAGE,
        ),
        Api(
            "responses",
            "/v1/responses",
            lambda tokens: {"input": fresh_text(tokens)},
            {"temperature": 0, "max_output_tokens": ANSWER_TOKENS},
            _responses_text,
            _openai_usage,
            {},
        ),
        Api(
            "messages",
            "/v1/messages",
            _user,
            {"temperature": 0, "max_tokens": ANSWER_TOKENS},
            _messages_text,
            _anthropic_usage,
            {},
        ),
        Api(
            "generate",
            "/inference/v1/generate",
            lambda tokens: {"token_ids": fresh_ids(tokens)},
            {"sampling_params": dict(_CERTAIN)},
            _generate_text,
            _openai_usage,
            _WITH_USAGE,
        ),
    )
}


def every_api() -> Iterator[tuple[str, bool]]:
    """(API, streaming) for parametrization."""
    for name in APIS:
        yield name, False
        yield name, True
