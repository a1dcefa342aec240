"""Server-sent events of each API, in the shape and key order of vLLM 0.32.

Rule: pure; a stream turns steps into the bytes of events, one event per generated token, and never carries
`kv_transfer_params` (vLLM 0.32 does not).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from sidecar.lab.answers import (
    Answered,
    Json,
    Usage,
    message_stop_reason,
    weight_versions,
)
from sidecar.lab.faults import ApiError
from sidecar.lab.jobs import Step
from sidecar.lab.responses import closing_events, opening_events, text_event

DONE = b"data: [DONE]\n\n"


class Stream(Protocol):
    """One ask's events. `begun` is the ask with no answers yet, made when its first token is there."""

    def begin(self, begun: Answered) -> Iterator[bytes]:
        """Events before the first text."""

    def step(self, index: int, step: Step, usage: Usage) -> Iterator[bytes]:
        """Events of one token of the index-th answer; `usage` as of now."""

    def end(self, answered: Answered) -> Iterator[bytes]:
        """Events after the last text."""


def encode_json(value: object) -> bytes:
    """JSON as vLLM writes it: compact, UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def error_event(error: ApiError) -> bytes:
    """An error after the head has gone out."""
    return _event(error.body()) + DONE


class ChatStream:
    """/v1/chat/completions."""

    kind = "chat.completion.chunk"

    def begin(self, begun: Answered) -> Iterator[bytes]:
        """The role, for each answer."""
        self._begun = begun
        ids = list(begun.ask.jobs[0].prompt) if begun.ask.return_token_ids else None
        for index in range(len(begun.ask.jobs)):
            delta = {"role": "assistant", "content": ""}
            choice: Json = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            usage = begun.usage if begun.ask.continuous_usage else None
            yield self._chunk(choice, usage, {"prompt_token_ids": ids, "prompt_text": None})

    def step(self, index: int, step: Step, usage: Usage) -> Iterator[bytes]:
        """One chunk."""
        choice: Json = {
            "index": index,
            "delta": {"content": step.text},
            "logprobs": None,
            "finish_reason": step.finish_reason,
        }
        if step.finish_reason:
            choice["stop_reason"] = step.stop_reason
        choice["token_ids"] = [step.token_id] if self._begun.ask.return_token_ids else None
        yield self._chunk(choice, usage if self._begun.ask.continuous_usage else None, {})

    def end(self, answered: Answered) -> Iterator[bytes]:
        """The usage if asked for, and the end mark."""
        if answered.ask.include_usage:
            yield self._chunk(None, answered.usage, {"system_fingerprint": answered.ask.fingerprint})
        yield DONE

    def _chunk(self, choice: Json | None, usage: Usage | None, more: Json) -> bytes:
        ask = self._begun.ask
        chunk: Json = {
            "id": ask.id,
            "object": self.kind,
            "created": self._begun.created_s,
            "model": ask.model,
        }
        chunk["choices"] = [choice] if choice else []
        if usage:
            chunk["usage"] = usage.streamed()
        return _event(chunk | more)


class CompletionStream(ChatStream):
    """/v1/completions."""

    kind = "text_completion"

    def begin(self, begun: Answered) -> Iterator[bytes]:
        """Nothing: the first event is the first token."""
        self._begun = begun
        return iter(())

    def step(self, index: int, step: Step, usage: Usage) -> Iterator[bytes]:
        """One chunk."""
        choice: Json = {
            "index": index,
            "text": step.text,
            "logprobs": None,
            "finish_reason": step.finish_reason,
            "stop_reason": step.stop_reason,
            "prompt_token_ids": None,
            "token_ids": [step.token_id] if self._begun.ask.return_token_ids else None,
        }
        yield self._chunk(choice, usage if self._begun.ask.continuous_usage else None, {})


class MessageStream:
    """/v1/messages."""

    def begin(self, begun: Answered) -> Iterator[bytes]:
        """The message without content."""
        message: Json = {
            "id": begun.ask.id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": begun.ask.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": replace(begun.usage, completion_tokens=0).of_message_start(),
        }
        yield _named_event({"type": "message_start", "message": message})
        block = {"type": "text", "text": ""}
        yield _named_event({"type": "content_block_start", "index": 0, "content_block": block})

    def step(self, index: int, step: Step, usage: Usage) -> Iterator[bytes]:
        """One delta."""
        delta = {"type": "text_delta", "text": step.text}
        yield _named_event({"type": "content_block_delta", "index": index, "delta": delta})

    def end(self, answered: Answered) -> Iterator[bytes]:
        """Why it ended, and the usage."""
        one = answered.spoken[0]
        yield _named_event({"type": "content_block_stop", "index": 0})
        yield _named_event(
            {
                "type": "message_delta",
                "delta": {
                    "stop_reason": message_stop_reason(one.finish_reason, one.stop_reason),
                    "stop_sequence": one.stop_reason if isinstance(one.stop_reason, str) else None,
                },
                "usage": answered.usage.of_message(),
            }
        )
        yield _named_event({"type": "message_stop"})
        yield DONE


class ResponseStream:
    """/v1/responses."""

    def __init__(self) -> None:
        self._sent = 0

    def begin(self, begun: Answered) -> Iterator[bytes]:
        """The response without output, then an item without text."""
        self._begun = begun
        yield from map(self._numbered, opening_events(begun))

    def step(self, index: int, step: Step, usage: Usage) -> Iterator[bytes]:
        """One delta."""
        yield self._numbered(text_event(self._begun, step.text))

    def end(self, answered: Answered) -> Iterator[bytes]:
        """The text again at each level, then the whole response with its usage."""
        yield from map(self._numbered, closing_events(answered, answered.spoken[0]))

    def _numbered(self, event: Json) -> bytes:
        self._sent += 1
        return _named_event({"type": event["type"], "sequence_number": self._sent - 1} | event)


class GenerateStream:
    """/inference/v1/generate: token ids instead of text."""

    def __init__(self) -> None:
        self._tokens: Counter[int] = Counter()

    def begin(self, begun: Answered) -> Iterator[bytes]:
        """Nothing: the first event is the first token."""
        self._begun = begun
        return iter(())

    def step(self, index: int, step: Step, usage: Usage) -> Iterator[bytes]:
        """One token; the last one says which weights made them all."""
        self._tokens[index] += 1
        choice: Json = {
            "index": index,
            "finish_reason": step.finish_reason,
            "stop_reason": step.stop_reason,
            "token_ids": [step.token_id],
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": weight_versions(self._tokens[index]) if step.finish_reason else None,
            "logprobs": None,
        }
        # Usage on the way is without details (vLLM 0.32, token_in_token_out/serving.py).
        counts = replace(usage, details=False).whole() if self._begun.ask.continuous_usage else None
        yield self._chunk([choice], counts)

    def end(self, answered: Answered) -> Iterator[bytes]:
        """The usage if asked for, and the end mark."""
        if answered.ask.include_usage:
            yield self._chunk([], answered.usage.streamed())
        yield DONE

    def _chunk(self, choices: list[Json], usage: Json | None) -> bytes:
        request_id = self._begun.ask.id
        return _event({"request_id": request_id, "usage": usage, "output_mode": "tokens", "choices": choices})


def _event(value: Json) -> bytes:
    return b"data: " + encode_json(value) + b"\n\n"


def _named_event(value: Json) -> bytes:
    return b"event: " + str(value["type"]).encode() + b"\n" + _event(value)
