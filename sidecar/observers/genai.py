"""Says what the server span of an exchange tells in OpenTelemetry's words for generative AI.

Rule: pure, from records alone. Names and values are those of semantic-conventions-genai
(docs/gen-ai/client-inference.md, November 2026; still "Development"). Never a message, prompt or completion;
token counts only where the record has them, since answers are not read for the sake of a span.
"""

from __future__ import annotations

import json

from sidecar.api import Api
from sidecar.observers.records import ExchangeRecord
from sidecar.observers.spans import Attributes

# gen_ai.operation.name: the convention counts OpenAI's Responses and Anthropic's Messages among "chat"; what
# is prompted with text or token ids is a text completion.
_OPERATIONS = {"chat_completions": "chat", "responses": "chat", "messages": "chat"}
_COMPLETION = "text_completion"

# gen_ai.provider.name: no well-known value is a self-hosted engine, so that its own name stands here.
_VLLM, _SGLANG = "vllm", "sglang"

# Longest `model` in bytes of JSON that is told; a repository of Hugging Face has at most 96 characters, and a
# path to an adapter seldom more than twice that.
MAX_MODEL_BYTES = 256


def attributes(record: ExchangeRecord, connector: str) -> Attributes:
    """What is known when the answer has ended; nothing of a path that is not routed.

    connector: `--kv-connector`, which tells the engine's kind.
    """
    api = record.api
    if api is None:
        return {}
    told: Attributes = {
        "gen_ai.operation.name": _OPERATIONS.get(api.name, _COMPLETION),
        "gen_ai.provider.name": _provider(api, connector),
    }
    if record.model is not None and (model := _model(record.model)) is not None:
        told["gen_ai.request.model"] = model
    if record.completion_tokens is not None:
        told["gen_ai.usage.output_tokens"] = record.completion_tokens
    return told | _input(record)


def _provider(api: Api, connector: str) -> str:
    return _SGLANG if "sglang" in (connector, api.name.partition("_")[0]) else _VLLM


def _model(raw: bytes) -> str | None:
    """The name that the client asked for; None when it is no string that a span can carry.

    Lone surrogates, which JSON can spell, would make the exporter drop the whole batch.
    """
    if not raw.startswith(b'"') or len(raw) > MAX_MODEL_BYTES:
        return None
    name: str = json.loads(raw)
    return name if name.isprintable() else None


def _input(record: ExchangeRecord) -> Attributes:
    """Tokens of the client's prompt, as the engine that computed it reported them."""
    for leg in record.legs:  # the first: later chunks of an answer have longer prompts
        if leg.prompt_tokens is not None:
            told: Attributes = {"gen_ai.usage.input_tokens": leg.prompt_tokens}
            if leg.cached_tokens is not None:
                told["gen_ai.usage.cache_read.input_tokens"] = leg.cached_tokens
            return told
    return {}
