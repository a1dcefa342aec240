"""Lets a prefiller read what the decoder still holds of a conversation's last turn, when that is proven.

Rule: pure; part of a plan. Whatever is in doubt is computed: a decoder that cannot say the tokens, tokens
that are not the same, a prefiller that could not read. What is read is offered once, since reading frees it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import msgspec

from sidecar.api import Edits
from sidecar.body import Body, dump
from sidecar.call import Call
from sidecar.errors import LegFailed
from sidecar.plan import Ask, Leg, Reply, Role, Step
from sidecar.routing import Route
from sidecar.turns import Conversation, Keep, prompt_digest, proven

# vLLM's tokenizers take some 10 ms for ten thousand tokens. One that is so slow is waited for in vain: the
# prompt is computed at once instead.
_TOKENIZE_S = 2.0
# What /tokenize reads of a chat request (vLLM 0.32 serve/tokenize/protocol.py).
_PROMPT_FIELDS = ("model", "messages", "tools", "chat_template", "chat_template_kwargs", "add_special_tokens")
# vLLM 0.32 ChatCompletionRequest: the answer tells the prompt's tokens.
_TELL_TOKENS: Edits = {"return_token_ids": b"true"}


def prefilled(call: Call, route: Route, params: Mapping[str, Any]) -> Generator[Step, list[Reply], Reply]:
    """The prefiller's answer, with the last turn read from the decoder where that is possible.

    params: the prefill leg's `kv_transfer_params` without that. Raises LegFailed.
    """
    assert route.prefiller is not None
    talk = call.conversation
    also: Edits = _TELL_TOKENS if talk else {}
    if talk and talk.turn and (yield from _is_proven(call, route, talk)):
        held = {**params, **msgspec.json.decode(talk.turn.params)}
        leg = call.prefill(route.prefiller, held, None, also).reading(talk.turn.engine_id)
        try:
            [reply] = yield Ask((leg,))
            return reply
        except LegFailed as failed:
            if not _may_be_the_read(failed):
                raise
    [reply] = yield Ask((call.prefill(route.prefiller, params, route.source, also),))
    return reply


def kept(call: Call, reply: Reply) -> Keep | None:
    """What to keep of this turn when its answer is known; None without the feature or the prompt's tokens."""
    if call.conversation is None:
        return None
    tokens = _tokens(reply, "prompt_token_ids")
    return Keep(call.conversation, len(tokens), prompt_digest(tokens)) if tokens else None


def _is_proven(call: Call, route: Route, talk: Conversation) -> Generator[Step, list[Reply], bool]:
    """Ask the decoder for the tokens of the prompt and of the earlier answer: the one must continue the
    other's."""
    assert talk.turn is not None
    prompt = Body({name: call.body[name] for name in _PROMPT_FIELDS if name in call.body})
    fields = {"prompt": dump(talk.answer), "add_special_tokens": b"false"}
    answer = Body({**{name: call.body[name] for name in ("model",) if name in call.body}, **fields})
    try:
        whole, said = yield Ask((_tokenize(call, route, prompt), _tokenize(call, route, answer)))
    except LegFailed:
        return False
    return proven(talk.turn, _tokens(said, "tokens"), _tokens(whole, "tokens"))


def _tokenize(call: Call, route: Route, body: Body) -> Leg:
    return call.aside(Role.TOKENIZE, route.decoder, b"/tokenize", body, _TOKENIZE_S)


def _tokens(reply: Reply, field: str) -> list[int]:
    """Token ids out of an answer; none when there are none."""
    try:
        return msgspec.json.decode(reply.body.get(field, b"[]"), type=list[int])
    except msgspec.MsgspecError:
        return []


def _may_be_the_read(failed: LegFailed) -> bool:
    """Whether the same request without the read may succeed.

    vLLM 0.32 answers 500 for a read that fails (`kv_load_failure_policy` fail), but then it answers. A
    refusal of the request itself is the client's, and one that was lost may still be running.
    """
    reply: Reply | None = getattr(failed, "reply", None)
    return reply is not None and reply.status >= 500
