"""Calls the sidecar with the official Python SDKs and prints what a program sees, as one JSON object.

Rule: runs in vLLM's environment, which has both SDKs; what is right is decided by the test that runs it.
Arguments: URL of a sidecar, URL of a sidecar whose engine is down, the extra headers as JSON, a text for the
prompt. Each call's outcome stands under its name, an exception as its class, status and message.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic  # type: ignore[import-not-found]
import openai  # type: ignore[import-not-found]

MODEL = "tiny"
TIMEOUT_S = 60
TOKENS = 12

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["day", "hour"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
OPENAI_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "forecast", "strict": True, "parameters": WEATHER},
}
OPENAI_CHOICE: dict[str, Any] = {"type": "function", "function": {"name": "forecast"}}
ANTHROPIC_TOOL: dict[str, Any] = {"name": "forecast", "strict": True, "input_schema": WEATHER}
ANTHROPIC_CHOICE: dict[str, Any] = {"type": "tool", "name": "forecast"}
TOOL_TOKENS = 200
HOSTILE: dict[str, Any] = {"kv_transfer_params": {"remote_kv_source": "abc"}}

Call = Callable[[], Any]


class Programs:
    """The calls, by name. `text` makes the prompts; `headers` go with each."""

    def __init__(self, url: str, down: str, headers: dict[str, str], text: str) -> None:
        common: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": TIMEOUT_S}
        self._openai = openai.OpenAI(base_url=url + "/v1", default_headers=headers, **common)
        self._openai_async = openai.AsyncOpenAI(base_url=url + "/v1", default_headers=headers, **common)
        self._anthropic = anthropic.Anthropic(base_url=url, default_headers=headers, **common)
        self._anthropic_async = anthropic.AsyncAnthropic(base_url=url, default_headers=headers, **common)
        self._openai_down = openai.OpenAI(base_url=down + "/v1", **common)
        self._anthropic_down = anthropic.Anthropic(base_url=down, **common)
        self._text = text
        self._said: list[dict[str, Any]] = [{"role": "user", "content": text}]
        self._chat: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": TOKENS}
        # stream() of anthropic 2.14 knows no temperature; the API still does.
        self._message: dict[str, Any] = {
            "model": MODEL,
            "max_tokens": TOKENS,
            "extra_body": {"temperature": 0},
        }

    def calls(self) -> dict[str, Call]:
        """Those that return at once."""
        return {**self._openai_calls(), **self._anthropic_calls()}

    def _openai_calls(self) -> dict[str, Call]:
        chat = self._openai.chat.completions
        forced = {"tools": [OPENAI_TOOL], "tool_choice": OPENAI_CHOICE, "max_tokens": TOOL_TOKENS}
        return {
            "openai chat": lambda: _chat(chat.create(messages=self._said, **self._chat)),
            "openai chat stream": self._openai_stream,
            "openai completion": lambda: (
                self._openai.completions.create(prompt=self._text, **self._chat).choices[0].text
            ),
            "openai responses": self._responses,
            "openai responses stream": self._responses_stream,
            "openai tool": lambda: _openai_tool(chat.create(messages=self._said, **self._chat | forced)),
            "openai models": lambda: [model.id for model in self._openai.models.list()],
            "openai refused by the sidecar": lambda: chat.create(
                messages=self._said, **self._chat, extra_body=HOSTILE
            ),
            "openai refused by the engine": lambda: chat.create(
                messages=self._said, **self._chat | {"model": "nope"}
            ),
            "openai engine down": lambda: self._openai_down.chat.completions.create(
                messages=self._said, **self._chat
            ),
        }

    def _anthropic_calls(self) -> dict[str, Call]:
        messages = self._anthropic.messages
        forced = {"tools": [ANTHROPIC_TOOL], "tool_choice": ANTHROPIC_CHOICE, "max_tokens": TOOL_TOKENS}
        return {
            "anthropic message": lambda: _message(messages.create(messages=self._said, **self._message)),
            "anthropic message stream": self._anthropic_stream,
            "anthropic tool": lambda: _anthropic_tool(
                messages.create(messages=self._said, **self._message | forced)
            ),
            "anthropic count": lambda: (
                messages.count_tokens(model=MODEL, messages=self._said).input_tokens > 0
            ),
            "anthropic refused by the sidecar": lambda: messages.create(
                messages=self._said, **self._message | {"extra_body": HOSTILE}
            ),
            "anthropic refused by the engine": lambda: messages.create(
                messages=self._said, **self._message | {"model": "nope"}
            ),
            "anthropic engine down": lambda: self._anthropic_down.messages.create(
                messages=self._said, **self._message
            ),
        }

    def awaited(self) -> dict[str, Callable[[], Awaitable[Any]]]:
        """Those of the asynchronous clients."""
        return {
            "openai chat async": self._openai_async_chat,
            "openai chat async stream": self._openai_async_stream,
            "anthropic message async": self._anthropic_async_message,
            "anthropic message async stream": self._anthropic_async_stream,
        }

    def _openai_stream(self) -> str:
        chat = self._openai.chat.completions
        with chat.create(messages=self._said, stream=True, **self._chat) as stream:
            return "".join(event.choices[0].delta.content or "" for event in stream if event.choices)

    def _responses(self) -> str:
        answer = self._openai.responses.create(
            model=MODEL, input=self._text, temperature=0, max_output_tokens=TOKENS
        )
        return str(answer.output_text)

    def _responses_stream(self) -> str:
        with self._openai.responses.create(
            model=MODEL, input=self._text, temperature=0, max_output_tokens=TOKENS, stream=True
        ) as stream:
            return "".join(event.delta for event in stream if event.type == "response.output_text.delta")

    def _anthropic_stream(self) -> str:
        with self._anthropic.messages.stream(messages=self._said, **self._message) as stream:
            return "".join(stream.text_stream)

    async def _openai_async_chat(self) -> Any:
        return _chat(await self._openai_async.chat.completions.create(messages=self._said, **self._chat))

    async def _openai_async_stream(self) -> str:
        chat = self._openai_async.chat.completions
        text = ""
        async with await chat.create(messages=self._said, stream=True, **self._chat) as stream:
            async for event in stream:
                text += event.choices[0].delta.content or "" if event.choices else ""
        return text

    async def _anthropic_async_message(self) -> Any:
        return _message(await self._anthropic_async.messages.create(messages=self._said, **self._message))

    async def _anthropic_async_stream(self) -> str:
        async with self._anthropic_async.messages.stream(messages=self._said, **self._message) as stream:
            return "".join([text async for text in stream.text_stream])


def _chat(answer: Any) -> str:
    return str(answer.choices[0].message.content)


def _message(answer: Any) -> str:
    return str(answer.content[0].text)


def _openai_tool(answer: Any) -> Any:
    call = answer.choices[0].message.tool_calls[0].function
    return [call.name, json.loads(call.arguments)]


def _anthropic_tool(answer: Any) -> Any:
    [use] = [part for part in answer.content if part.type == "tool_use"]
    return [use.name, use.input]


def _failure(error: Exception) -> dict[str, Any]:
    module = type(error).__module__.partition(".")[0]
    body = getattr(error, "body", None)
    return {
        "error": f"{module}.{type(error).__name__}",
        "status": getattr(error, "status_code", None),
        "message": str(error),
        "body": body if isinstance(body, dict) else None,
    }


def outcome(call: Call) -> Any:
    """What a call returned, or how it failed."""
    try:
        return call()
    except Exception as error:
        return _failure(error)


async def outcome_awaited(call: Callable[[], Awaitable[Any]]) -> Any:
    """The same for an asynchronous call."""
    try:
        return await call()
    except Exception as error:
        return _failure(error)


async def _all_awaited(programs: Programs) -> dict[str, Any]:
    return {name: await outcome_awaited(call) for name, call in programs.awaited().items()}


def main() -> None:
    """Run every call, one after the other."""
    url, down, headers, text = sys.argv[1:]
    programs = Programs(url, down, json.loads(headers), text)
    outcomes = {name: outcome(call) for name, call in programs.calls().items()}
    outcomes |= asyncio.run(_all_awaited(programs))
    json.dump(outcomes, sys.stdout, default=repr)


if __name__ == "__main__":
    main()
