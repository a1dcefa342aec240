"""The one request that is timed, a streamed completion, and the reading of its answer.

Rule: pure. A directive to pull is a field of the body for an engine, and a header for a sidecar, which
overwrites that field or refuses it (contract sections 3 and 4).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sidecar.endpoint import Endpoint
from sidecar.headers import KV_SOURCE
from sidecar.remote.texts import Unreadable, decoded, shown

PATH = "/v1/completions"

Prompt = Sequence[int] | str
"""Token ids or a text."""


@dataclass(frozen=True, slots=True)
class Directive:
    """What makes a request pull: fields of its body, or headers."""

    fields: Mapping[str, Any]
    headers: Mapping[str, str]


NO_PULL = Directive({}, {})


@dataclass(frozen=True, slots=True)
class Answered:
    """A whole streamed answer; times are from the sending of the request.

    cached_tokens: None where the engine does not report them (`--enable-prompt-tokens-details`). headers: of
    the answer, in lower case.
    """

    ttft_ms: float
    total_ms: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)


def by_body(p2p: Endpoint, kv_request_id: str) -> Directive:
    """For an engine: it pulls from this P2P endpoint."""
    source = {"kv_request_id": kv_request_id, "remote_host": p2p.host, "remote_port": p2p.port}
    return Directive({"kv_transfer_params": {"remote_kv_source": source}}, {})


def by_header(source: Endpoint) -> Directive:
    """For a sidecar: the source as the endpoint picker names it."""
    return Directive({}, {KV_SOURCE[0].decode(): source.netloc})


def body(model: str, prompt: Prompt, directive: Directive, max_tokens: int) -> bytes:
    """The body of the request. `ignore_eos`: so that every answer has as many tokens."""
    fields = {
        "model": model,
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps({**fields, **directive.fields}, separators=(",", ":")).encode()


def has_token(event: bytes) -> bool:
    """Whether the data of an event brings something of an answer; the last events bring usage or nothing."""
    value = _object(event)
    return bool(value and isinstance(value.get("choices"), list) and value["choices"])


def usage_of(event: bytes) -> tuple[int, int, int | None] | None:
    """Prompt, completion and cached tokens of an event that reports them."""
    usage = (_object(event) or {}).get("usage")
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return (
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
        None if cached is None else _count(cached),
    )


def error_of(content: bytes) -> str | None:
    """The message of an error, in any shape that engines and sidecars give it (contract section 9)."""
    value = _object(content)
    if value is None:
        return None
    nested = value.get("error")
    message = nested.get("message") if isinstance(nested, dict) else nested or value.get("message")
    return shown(message) if isinstance(message, str) and message else None


def code_of(content: bytes) -> int | None:
    """The code of an error: of a stream that has begun the status is 200 all the same (seen on vLLM 0.32)."""
    value = _object(content) or {}
    nested = value.get("error")
    code = nested.get("code") if isinstance(nested, dict) else value.get("code")
    return code if isinstance(code, int) and 100 <= code <= 599 else None


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        value = decoded(content)
    except Unreadable:
        return None
    return value if isinstance(value, dict) else None


# No prompt has as many tokens; what is said beyond it is no count.
_MOST_TOKENS = 1_000_000_000


def _count(value: Any) -> int:
    return (
        value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS else 0
    )
