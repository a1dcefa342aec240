"""The routed APIs: for each path, how its body is capped and where its answer reports cached tokens.

Rule: pure; every field name of an API stands in this table and nowhere else.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

from sidecar.body import BadBody, Body, dump

Edits = dict[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Api:
    """One routed API.

    name: value of the span attribute `llm_d.openai.api`.
    cap: top-level fields set to 1 on a capped leg.
    nested_cap: fields set to 1 inside a copied `sampling_params`, for APIs that keep them there.
    relaxed: what only constrains the output and would make a one-token answer fail: field -> the JSON
        text to put there instead, or None to drop the field; applied when the field is present.
    stopless: top-level fields by which nothing but its cap ends a leg; None drops a field.
    cached_details: the object inside `usage` whose `cached_tokens` counts them, if the API has one.
    anthropic: errors are in Anthropic's shape.
    """

    name: str
    path: bytes
    cap: tuple[str, ...] = ()
    nested_cap: tuple[str, ...] = ()
    relaxed: Mapping[str, bytes | None] = field(default_factory=dict)
    stopless: Mapping[str, bytes | None] = field(default_factory=dict)
    cached_details: str | None = None
    anthropic: bool = False


# Dropped on a prefill leg: they choose among, shape or describe output tokens and leave the prompt alone.
# n and best_of would sample several one-token answers of one prompt; structured output and forced tools make
# engines parse that one token and fail on it.
_OUTPUT_ONLY: dict[str, bytes | None] = {
    "n": None,
    "best_of": None,
    "logprobs": None,
    "top_logprobs": None,
    "prompt_logprobs": None,
    "response_format": None,
    "structured_outputs": None,
    "guided_json": None,
    "guided_regex": None,
    "guided_choice": None,
    "guided_grammar": None,
}

# Without end-of-sequence and stop tokens. Stop strings may stay: vLLM 0.32 looks for them in the text of a
# request that its scheduler has ended already (v1/core/sched/utils.py, check_stop, looks at tokens only).
_STOPLESS: dict[str, bytes | None] = {"ignore_eos": b"true", "stop_token_ids": None}

APIS: tuple[Api, ...] = (
    Api(
        "chat_completions",
        b"/v1/chat/completions",
        cap=("max_tokens", "max_completion_tokens"),
        relaxed=_OUTPUT_ONLY,
        stopless=_STOPLESS,
        cached_details="prompt_tokens_details",
    ),
    Api(
        "completions",
        b"/v1/completions",
        cap=("max_tokens",),
        relaxed=_OUTPUT_ONLY,
        stopless=_STOPLESS,
        cached_details="prompt_tokens_details",
    ),
    Api(
        "responses",
        b"/v1/responses",
        cap=("max_output_tokens",),
        relaxed={"text": None, "top_logprobs": None, "include": None, "structured_outputs": None},
        stopless=_STOPLESS,
        cached_details="input_tokens_details",
    ),
    Api("messages", b"/v1/messages", cap=("max_tokens",), anthropic=True),
    Api(
        "vllm_generate",
        b"/inference/v1/generate",
        nested_cap=("max_tokens",),
        cached_details="prompt_tokens_details",
    ),
    Api("sglang_generate", b"/generate", nested_cap=("max_new_tokens",)),
)

_BY_PATH = {api.path: api for api in APIS}


def find(method: bytes, path: bytes) -> Api | None:
    """The API that a request is for, if it is a POST whose path cleans to a routed one (section 2)."""
    if method != b"POST":
        return None
    # Engines decode the path before they match it (uvicorn): what they would serve as routed is routed here.
    return _BY_PATH.get(path) or _BY_PATH.get(_clean(unquote_to_bytes(path)))


def _clean(path: bytes) -> bytes:
    if not path.startswith(b"/"):
        return path
    return b"/" + posixpath.normpath(path).lstrip(b"/")


def capped(api: Api, body: Body) -> Edits:
    """The edits that make a leg compute the prompt and one token only (contract section 3).

    Raises BadBody when `sampling_params` is not an object.
    """
    edits: Edits = {field: b"1" for field in api.cap}
    edits |= {"min_tokens": None, "stream": b"false", "stream_options": None}
    edits |= {field: text for field, text in api.relaxed.items() if field in body}
    if "tool_choice" in body:
        edits |= _tool_choice(api, body.value("tool_choice"))
    if api.nested_cap:
        edits["sampling_params"] = _capped_sampling(api, body)
    return edits


def _tool_choice(api: Api, choice: Any) -> Edits:
    """A forced tool cannot be called in one token; "none" keeps tools in the prompt and parses nothing."""
    forced = (
        choice.get("type") in ("any", "tool")
        if api.anthropic and isinstance(choice, dict)
        else (choice == "required" or isinstance(choice, dict))
    )
    if not forced:
        return {}
    return {"tool_choice": dump({"type": "none"}) if api.anthropic else b'"none"'}


_SAMPLING_OUTPUT_ONLY = (
    "min_tokens",
    "min_new_tokens",
    "n",
    "best_of",
    "logprobs",
    "prompt_logprobs",
    "structured_outputs",
)


def _capped_sampling(api: Api, body: Body) -> bytes:
    edits: Edits = dict.fromkeys(_SAMPLING_OUTPUT_ONLY)
    return _sampling(body).edited(edits | {field: b"1" for field in api.nested_cap}).encode()


def _sampling(body: Body) -> Body:
    raw = body.get("sampling_params")
    if raw is None or raw == b"null":
        return Body({})
    try:
        return Body.parse(raw)
    except BadBody:
        raise BadBody('field "sampling_params" must be an object') from None


def stopless(api: Api, body: Body) -> Edits:
    """The edits by which a capped leg ends at its cap and nowhere before: its finish reason is `length`.

    Nothing can be said about that in Anthropic's API. Raises BadBody when `sampling_params` is not an object.
    """
    if api.nested_cap:
        return {"sampling_params": _sampling(body).edited(_STOPLESS).encode()}
    return dict(api.stopless)
