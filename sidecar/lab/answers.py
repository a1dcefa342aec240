"""Whole answers of each API, in the shape and key order of vLLM 0.32.

Rule: pure; one function per API from the ask and its finished answers to a JSON object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sidecar.lab.asks import Ask

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Spoken:
    """One finished answer (one job): its text, tokens, why it ended, and what its prompt cost."""

    text: str
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: str | int | None
    cached_tokens: int
    created_tokens: int
    kv_transfer_params: Json | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a whole ask. With several answers to one prompt the prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    created_tokens: int | None
    details: bool

    def whole(self) -> Json:
        """As in whole answers: details are null unless the engine reports them."""
        details: Json | None = None
        if self.details:
            details = {
                "cached_tokens": self.cached_tokens,
                "created_cache_tokens": self.created_tokens,
                "multimodal_tokens": None,
            }
        return self._counts() | {"prompt_tokens_details": details, "completion_tokens_details": None}

    def streamed(self) -> Json:
        """As in SSE events: null members are left out."""
        if not self.details:
            return self._counts()
        details: Json = {"cached_tokens": self.cached_tokens}
        if self.created_tokens is not None:
            details["created_cache_tokens"] = self.created_tokens
        return self._counts() | {"prompt_tokens_details": details}

    def of_message(self) -> Json:
        """As /v1/messages has it: Anthropic counts cached and newly cached tokens beside the input."""
        if not self.details:
            return self.of_message_start()
        created = self.created_tokens or 0
        return {
            "input_tokens": max(0, self.prompt_tokens - self.cached_tokens - created),
            "output_tokens": self.completion_tokens,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": self.cached_tokens,
        }

    def of_message_start(self) -> Json:
        """The same where vLLM knows nothing of caches yet."""
        return {"input_tokens": self.prompt_tokens, "output_tokens": self.completion_tokens}

    def _counts(self) -> Json:
        total = self.prompt_tokens + self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": total,
            "completion_tokens": self.completion_tokens,
        }


@dataclass(frozen=True, slots=True)
class Answered:
    """An ask with all its answers; `created_s` is the epoch second at which it was taken up."""

    ask: Ask
    created_s: int
    spoken: Sequence[Spoken]
    usage: Usage


def chat_answer(answered: Answered) -> Json:
    """/v1/chat/completions."""
    ask, first = answered.ask, answered.spoken[0]
    choices = [
        {
            "index": i,
            "message": {
                "role": "assistant",
                "content": one.text,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": one.finish_reason,
            "stop_reason": one.stop_reason,
            "token_ids": list(one.token_ids) if ask.return_token_ids else None,
            "routed_experts": None,
        }
        for i, one in enumerate(answered.spoken)
    ]
    return _head(answered, "chat.completion") | {
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": ask.fingerprint,
        "usage": answered.usage.whole(),
        "prompt_logprobs": None,
        "prompt_token_ids": list(first.prompt_token_ids) if ask.return_token_ids else None,
        "prompt_text": None,
        "kv_transfer_params": first.kv_transfer_params,
        "ec_transfer_params": None,
        "metrics": None,
    }


def completion_answer(answered: Answered) -> Json:
    """/v1/completions."""
    ask = answered.ask
    choices = [
        {
            "index": i,
            "text": one.text,
            "logprobs": None,
            "finish_reason": one.finish_reason,
            "stop_reason": one.stop_reason,
            "token_ids": list(one.token_ids) if ask.return_token_ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": list(one.prompt_token_ids) if ask.return_token_ids else None,
            "routed_experts": None,
        }
        for i, one in enumerate(answered.spoken)
    ]
    return _head(answered, "text_completion") | {
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": ask.fingerprint,
        "usage": answered.usage.whole(),
        "kv_transfer_params": answered.spoken[0].kv_transfer_params,
        "ec_transfer_params": None,
        "metrics": None,
    }


def message_answer(answered: Answered) -> Json:
    """/v1/messages: null members are left out."""
    ask, first = answered.ask, answered.spoken[0]
    answer: Json = {
        "id": ask.id,
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": first.text}],
        "model": ask.model,
        "stop_reason": message_stop_reason(first.finish_reason, first.stop_reason),
    }
    if isinstance(first.stop_reason, str):
        answer["stop_sequence"] = first.stop_reason
    answer["usage"] = answered.usage.of_message()
    if first.kv_transfer_params is not None:
        answer["kv_transfer_params"] = first.kv_transfer_params
    return answer


def message_stop_reason(finish_reason: str, stop_reason: str | int | None) -> str:
    """Anthropic's word for why an answer ended."""
    if finish_reason == "length":
        return "max_tokens"
    return "stop_sequence" if isinstance(stop_reason, str) else "end_turn"


def generate_answer(answered: Answered) -> Json:
    """/inference/v1/generate: token ids instead of text."""
    choices = [
        {
            "index": i,
            "finish_reason": one.finish_reason,
            "stop_reason": one.stop_reason,
            "token_ids": list(one.token_ids),
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": weight_versions(len(one.token_ids)),
            "logprobs": None,
        }
        for i, one in enumerate(answered.spoken)
    ]
    return {
        "request_id": answered.ask.id,
        "model": answered.ask.model,
        "created": answered.created_s,
        "usage": answered.usage.whole(),
        "prompt_logprobs": None,
        "prompt_token_id_logprobs": None,
        "prompt_token_ids": None,
        "mm_placeholders": None,
        "metrics": None,
        "kv_transfer_params": answered.spoken[0].kv_transfer_params,
        "ec_transfer_params": None,
        "output_mode": "tokens",
        "choices": choices,
    }


def weight_versions(tokens: int) -> list[Json]:
    """Which weights made an answer of so many tokens: always the same."""
    return [{"version": "default", "start": 0, "end": tokens}]


def _head(answered: Answered, kind: str) -> Json:
    ask = answered.ask
    return {"id": ask.id, "object": kind, "created": answered.created_s, "model": ask.model}


Answer = Callable[[Answered], Json]
