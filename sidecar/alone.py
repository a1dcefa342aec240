"""Says which requests cannot use what other engines computed: no handoff from a prefiller, or no pull.

Rule: pure. Each reason was seen on real vLLM 0.32 engines, or read in its source where that is named: with
one of these KV is lost, goes to the wrong place, or ends an engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum

import msgspec

from sidecar.api import Api
from sidecar.body import BadBody, Body, elements
from sidecar.routing import NoPull
from sidecar.sizes import is_large


class Alone(StrEnum):
    """Why no prefiller is asked; the value of the span attribute `reason`."""

    # Beams are requests of the engine's own, made without `kv_transfer_params`
    # (generate/beam_search/online.py): P keeps nothing, D fetches nothing.
    BEAM_SEARCH = "beam_search"
    # Every prompt of a list gets the params of the first. Seen: the second one's text is another's; where it
    # is longer than the first, the decoder's engine process ends.
    SEVERAL_PROMPTS = "several_prompts"
    # The log probabilities of a prompt need its forward pass: D forgoes what it could fetch (scheduler.py,
    # skip_reading_prefix_cache). Seen: P computes, 0 bytes move, and P's blocks stay until the lease ends.
    PROMPT_LOGPROBS = "prompt_logprobs"


def why_alone(api: Api, body: Body) -> Alone | None:
    """Why this request cannot be handed from a prefiller to the decoder, if it cannot.

    A value of the wrong type counts as one that matters: the engine refuses it. Several choices of one prompt
    are handed over (contract section 3), although all of them read the blocks of one prefill, which vLLM
    0.32's NIXL frees after the first (pull_worker.py, _get_new_notifs; seen with n=8 as seven warnings of P).
    """
    return next((why for why, holds in _REASONS.items() if holds(api, body)), None)


def why_no_pull(api: Api, body: Body) -> NoPull | None:
    """Why the engine that computes this request's prompt cannot be made to pull it, if it cannot.

    Several prompts would share one pull. Seen: the engine process ends ("has keys but no probes"). Several
    choices of one prompt do share it: seen with n=8, one transfer and the same texts.
    """
    if not body.holds_any(_TELLING):
        return None
    if has_several_prompts(api, body):
        return NoPull.SEVERAL_PROMPTS
    if _searches_beams(api, body):
        return NoPull.BEAM_SEARCH
    return NoPull.PROMPT_LOGPROBS if _wants_prompt_logprobs(api, body) else None


def has_several_prompts(api: Api, body: Body) -> bool:
    """Whether the engine makes several requests of it: a list of texts, or of lists of token ids.

    `prompt_embeds` are prompts of their own.
    """
    if api.name != "completions":
        return False
    texts, embeds = body.get("prompt", b"null"), body.get("prompt_embeds", b"null")
    if embeds != b"null":
        return texts != b"null" or embeds[:1] == b"["
    if texts[:1] != b"[" or _OF_NUMBERS.match(texts):
        return False
    return _has_several_elements(texts)


def _has_several_elements(array: bytes) -> bool:
    try:
        _ONE_ELEMENT.decode(array)
        return False
    except msgspec.ValidationError:
        return _EMPTY.fullmatch(array) is None
    except (msgspec.DecodeError, RecursionError):  # a lone surrogate in the first, see Body.parse, or depth
        pass
    try:
        return is_large(array) or len(elements(array)) > 1
    except BadBody:  # nested too deeply: the engine refuses it
        return True


def _searches_beams(api: Api, body: Body) -> bool:
    return api.name in _OPENAI and body.get("use_beam_search", b"null") not in _OFF


def _wants_prompt_logprobs(api: Api, body: Body) -> bool:
    wants = _PROMPT_LOGPROBS.get(api.name)
    return wants is not None and wants(body)


_REASONS: dict[Alone, Callable[[Api, Body], bool]] = {
    Alone.BEAM_SEARCH: _searches_beams,
    Alone.SEVERAL_PROMPTS: has_several_prompts,
    Alone.PROMPT_LOGPROBS: _wants_prompt_logprobs,
}
# The fields without which none of that holds: most chats have none of them.
_TELLING = frozenset(
    ("prompt", "prompt_embeds", "use_beam_search", "echo", "prompt_logprobs", "sampling_params")
)
_OPENAI = ("chat_completions", "completions")
_OFF = (b"false", b"null", b"0")
# Most lists of a prompt are token ids, and long: such a one is not decoded.
_OF_NUMBERS = re.compile(rb"\[\s*+[-0-9]")
# A tuple, for its decoder stops at a second element, where a list's would go on to the millionth.
_ONE_ELEMENT = msgspec.json.Decoder(tuple[msgspec.Raw])
_EMPTY = re.compile(rb"\[\s*+\]")


def _of_chat(body: Body) -> bool:
    # `echo` asks for as many as `top_logprobs` says, 0 when it says nothing (chat_completion/protocol.py).
    echoed = _echoes(body) and body.get("top_logprobs", b"0") != b"null"
    return echoed or _names_prompt_logprobs(body)


def _of_completions(body: Body) -> bool:
    echoed = _echoes(body) and body.get("logprobs", b"null") != b"null"
    return echoed or _names_prompt_logprobs(body)


def _of_generate(body: Body) -> bool:
    sampling = _sampling(body)
    return _names_prompt_logprobs(sampling) or sampling.get("prompt_logprob_token_ids", b"null") != b"null"


_PROMPT_LOGPROBS: dict[str, Callable[[Body], bool]] = {
    "chat_completions": _of_chat,
    "completions": _of_completions,
    "vllm_generate": _of_generate,
}


def _echoes(body: Body) -> bool:
    return body.get("echo", b"null") not in _OFF


def _names_prompt_logprobs(body: Body) -> bool:
    return body.get("prompt_logprobs", b"null") != b"null"


def _sampling(body: Body) -> Body:
    """`sampling_params`; empty when it is no object, which the cap refuses."""
    try:
        return Body.parse(body.get("sampling_params", b"{}"))
    except BadBody:
        return Body({})
