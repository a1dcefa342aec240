"""Chunked decode: a chat answer in budgets of so many tokens, one leg each, given to the client as one.

Rule: pure; wraps the answer that any plan delivers. Each next leg says the text so far in one assistant
message that the engine continues. What would not give the answer of one decode is decoded in one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sidecar.api import Edits
from sidecar.body import BadBody, Body
from sidecar.errors import LegFailed, LegRefused
from sidecar.kvparams import FIELD, cleared
from sidecar.pieces import Piece, document, event, read, spent, stream_headers
from sidecar.plan import Ask, Chunk, Deliver, Emit, Finish, Leg, Plan, Reply

# What a chat may ask for that does not survive a cut, with the texts that ask for nothing; null never does.
# Of vLLM 0.32's fields (chat completion protocol): several answers; what is told of single tokens; what is
# parsed or constrained from its first token to its last; what counts or compares over all output (stop texts
# can lie across a cut); and a prompt whose end or length is the client's own choice.
_UNDIVIDED: Mapping[str, tuple[bytes, ...]] = {
    **{name: (b"1",) for name in ("n", "best_of")},
    **{
        name: (b"false",)
        for name in ("logprobs", "use_beam_search", "return_token_ids", "return_prompt_text")
    },
    **{name: () for name in ("prompt_logprobs", "logprob_token_ids", "audio", "thinking_token_budget")},
    **{name: (b"[]",) for name in ("tools", "functions", "stop", "bad_words")},
    **{name: () for name in ("structured_outputs", "guided_json", "guided_regex", "guided_choice")},
    **{name: () for name in ("guided_grammar", "repetition_detection", "truncate_prompt_tokens")},
    **{name: (b"0", b"0.0") for name in ("presence_penalty", "frequency_penalty")},
    "top_logprobs": (b"0",),
    "response_format": (b'{"type":"text"}', b'{"type": "text"}'),
    "min_tokens": (b"0",),
    "echo": (b"false",),
    "continue_final_message": (b"false",),
    "add_generation_prompt": (b"true",),
    "stream": (b"true", b"false"),
}
# The client's own limit: the first of these that it sets.
_LIMITS = ("max_completion_tokens", "max_tokens")

# What engines write when the text so far leaves no room for another chunk, where one decode ends with
# "length" (vLLM 0.32 renderers/params.py: the prompt is too long; sampling_params.py: it leaves no token).
_CONTEXT_FULL = (b"context length", b"max_tokens must be at least 1, got 0")


def divisible(body: Body, size_tokens: int) -> bool:
    """Whether the answer to this chat is longer than a chunk may be, and can be cut."""
    messages = body.get("messages", b"null")
    if not messages.startswith(b"[") or not messages[1:-1].strip():
        return False
    for field, harmless in _UNDIVIDED.items():
        if body.get(field, b"null") not in (b"null", *harmless):
            return False
    try:
        limit_tokens = _limit(body)
    except BadBody:
        return False
    return limit_tokens is None or limit_tokens > size_tokens


def chunked(plan: Plan, size_tokens: int) -> Plan:
    """The plan of a `divisible` chat, with what it delivers decoded in chunks. An offer is decoded in one."""
    end = yield from plan
    if not isinstance(end, Deliver):
        return end
    while True:
        try:
            return (yield from _in_chunks(end, size_tokens))
        except LegFailed as failed:
            if failed.leg.chunk or not failed.retryable or end.otherwise is None:
                raise
            end = end.otherwise  # a started leg could not be had


def _in_chunks(deliver: Deliver, size_tokens: int) -> Plan:
    """Ask for chunk after chunk, giving a stream each as it comes."""
    body = Body.parse(deliver.leg.content or b"")
    limit_tokens = _limit(body)
    streaming = body.get("stream") == b"true"
    got: list[Piece] = []
    last = False
    while not last:
        most_tokens = size_tokens if limit_tokens is None else min(size_tokens, limit_tokens - spent(got))
        leg = replace(_leg(deliver.leg, body, got, most_tokens), chunk=Chunk(len(got), size_tokens))
        ask = Ask((leg,), refusable=bool(got))
        [reply] = yield replace(ask, handoff_lost=deliver.handoff_lost, after_started=deliver.after_started)
        piece = read(leg, reply, most_tokens) if reply.succeeded else _context_full(leg, reply, got[-1])
        if not got and piece.cut and piece.stuck:
            return _undivided(deliver, body)
        got.append(piece)
        last = not piece.cut or not piece.text or 0 < (limit_tokens or 0) <= spent(got)
        if streaming:
            yield Emit(stream_headers(got[0]), event(got, last=last, cached_tokens=deliver.cached_tokens))
    return Finish(None if streaming else document(got, deliver.cached_tokens), spent(got))


def _limit(body: Body) -> int | None:
    """The client's own limit, None without one. Raises BadBody for one that is the engine's to refuse."""
    for field in _LIMITS:
        limit = body.value(field)
        if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
            return limit
        if limit is not None:
            raise BadBody(f'field "{field}" must be a positive integer')
    return None


def _leg(leg: Leg, body: Body, got: list[Piece], most_tokens: int) -> Leg:
    """The next leg: the delivered one, capped; after the first chunk with the text so far, without params."""
    edits: Edits = {field: b"%d" % most_tokens for field in _LIMITS}
    edits |= {"stream": b"false", "stream_options": None}
    if got:
        text = b"".join([piece.text for piece in got])
        said = b',{"role":"assistant","content":"%b"}]' % text
        edits |= {**cleared(body), FIELD: None, "messages": body["messages"][:-1] + said}
        edits |= {"continue_final_message": b"true", "add_generation_prompt": b"false"}
        leg = replace(leg, pull=None)
    return replace(leg, content=body.edited(edits).encode())


def _context_full(leg: Leg, reply: Reply, before: Piece) -> Piece:
    """An empty last piece, when that is why the engine refused; else the refusal is raised."""
    said = reply.content.lower()
    if reply.status != 400 or not any(words in said for words in _CONTEXT_FULL):
        raise LegRefused(leg, reply)
    return replace(before, text=b"", tokens=0)


def _undivided(deliver: Deliver, body: Body) -> Deliver:
    """All over again in one, since no text says all that there is to go on from: reasoning, mostly.

    Without the params of the leg: they are good for one use, and the engine has the prompt's blocks now.
    """
    content = body.edited({**cleared(body), FIELD: None}).encode()
    return replace(deliver, leg=replace(deliver.leg, content=content, pull=None), otherwise=None)
