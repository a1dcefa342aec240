"""The routed APIs: for each path, how its body is capped and where its answer reports cached tokens.

Rule: pure; every field name of an API stands in this table and nowhere else.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from sidecar.body import BadBody, Body

Edits = dict[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Api:
    """One routed API.

    name: value of the span attribute `llm_d.openai.api`.
    cap: top-level fields set to 1 on a capped leg.
    nested_cap: fields set to 1 inside a copied `sampling_params`, for APIs that keep them there.
    relaxed: what only shapes the output: field -> the JSON text to put there instead, or None to drop the
        field; applied when the field is present.
    stopless: top-level fields by which nothing but its cap ends a leg; None drops a field.
    unforced: the `tool_choice` that takes the place of one that forces a tool.
    cached_details: the object inside `usage` whose `cached_tokens` counts them, if the API has one.
    anthropic: errors are in Anthropic's shape.
    """

    name: str
    path: bytes
    cap: tuple[str, ...] = ()
    nested_cap: tuple[str, ...] = ()
    relaxed: Mapping[str, bytes | None] = field(default_factory=dict)
    stopless: Mapping[str, bytes | None] = field(default_factory=dict)
    unforced: bytes = b"null"
    cached_details: str | None = None
    anthropic: bool = False


# Dropped on a prefill leg: they choose among, constrain or describe output tokens and leave the prompt alone.
# vLLM 0.32 answers one token with any of them; without them P samples one answer, compiles no grammar,
# computes no log probabilities (`prompt_logprobs`, and `echo` with `logprobs`, make it forgo its cache), and
# finishes by length: where the first token is a stop, Mooncake's P frees the blocks at once
# (mooncake_connector.py, request_finished). `logprob_token_ids` goes where `logprobs` goes: alone it is a 400
# (protocol.py, check_logprobs).
_OUTPUT_ONLY: Mapping[str, bytes | None] = dict.fromkeys(
    (
        "n",
        "best_of",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "logprob_token_ids",
        "echo",
        "stop",
        "stop_token_ids",
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
    )
)
_RESPONSES_OUTPUT_ONLY: Mapping[str, bytes | None] = dict.fromkeys(
    ("text", "top_logprobs", "include", "stop", "stop_token_ids", "structured_outputs")
)

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
        relaxed=_RESPONSES_OUTPUT_ONLY,
        stopless=_STOPLESS,
        unforced=b'"auto"',
        cached_details="input_tokens_details",
    ),
    Api(
        "messages",
        b"/v1/messages",
        cap=("max_tokens",),
        relaxed={"stop_sequences": None},
        unforced=b'{"type":"auto"}',
        anthropic=True,
    ),
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
    # Engines decode the path before they match it (uvicorn), by a pattern that a last line feed does not
    # break (Starlette, compile_path): what they would serve as routed is routed here.
    return _BY_PATH.get(path) or _BY_PATH.get(_clean(unquote_to_bytes(path).removesuffix(b"\n")))


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
    if _forces_a_tool(api, body):
        edits["tool_choice"] = api.unforced
    if _shows_constraints(body):
        edits.pop("tool_choice", None)
        edits.pop("response_format", None)
    if api.anthropic and _has_thinking_budget(body):
        edits["thinking"] = None
    if api.nested_cap:
        edits["sampling_params"] = _capped_sampling(api, body)
    return edits


def _forces_a_tool(api: Api, body: Body) -> bool:
    """Whether `tool_choice` forces a call, which cannot be made in one token.

    vLLM 0.18 was reported to answer 500 (issue 38911); 0.32 does not. The choice that takes its place must
    leave the tools in the prompt, or the decoder reads blocks of another prompt (seen on 0.32: it dies when
    they are fewer): "none" takes them out under `--exclude-tools-when-tool-choice-none`. null, for chat,
    needs no tool parser either; the other APIs do not take it, or take it for "auto".
    """
    if "tool_choice" not in body:
        return False
    choice = body.value("tool_choice")
    if api.anthropic and isinstance(choice, dict):
        return choice.get("type") in ("any", "tool")
    return choice == "required" or isinstance(choice, dict)


# Their prompt shows `tool_choice` and `response_format` (vLLM 0.32 renderers/kimi_k3.py; no other renderer
# does), so there these stay as sent; the versions that serve such models answer one token all the same.
_SHOWS_CONSTRAINTS = ("kimi-k3", "kimi_k3")


def _shows_constraints(body: Body) -> bool:
    """Whether the prompt depends on what else only constrains the output. Told by the model's served name."""
    model = body.get("model", b"").lower()
    return any(name.encode() in model for name in _SHOWS_CONSTRAINTS)


def _has_thinking_budget(body: Body) -> bool:
    """Whether `thinking` is enabled: its budget, at least 1024, must be under `max_tokens`, which is 1 now.

    vLLM 0.32 leaves that check out only for `do_remote_decode` (anthropic/protocol.py), and lets the budget
    limit the output and nothing else; type "disabled" shapes the prompt and stays (anthropic/serving.py).
    """
    thinking = body.value("thinking")
    return isinstance(thinking, dict) and thinking.get("type") == "enabled"


_SAMPLING_OUTPUT_ONLY = (
    "min_tokens",
    "min_new_tokens",
    "n",
    "best_of",
    "logprobs",
    "prompt_logprobs",
    "logprob_token_ids",
    "stop",
    "stop_token_ids",
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
