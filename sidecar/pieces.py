"""The answers of a chunked decode's legs, and the one answer that they make: a document or a stream.

Rule: pure. Texts are joined as the engine wrote them, never decoded; the answer's name and age are the first
piece's, how it ended the last one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sidecar import headers as names
from sidecar.body import Body, dump, elements
from sidecar.errors import UnusableAnswer
from sidecar.headers import Headers
from sidecar.plan import Leg, Reply

# What else a message can hold that a model said (vLLM 0.32 ChatMessage; "reasoning_content" until 0.15): the
# first three as texts.
_TEXTS = ("reasoning", "reasoning_content", "refusal")
_SAID = (*_TEXTS, "tool_calls", "function_call", "audio")
# What stays the same over all of an answer (OpenAI API reference, chat completion chunk object).
_NAMES = ("id", "created", "model", "service_tier", "system_fingerprint")


@dataclass(frozen=True, slots=True)
class Piece:
    """One leg's answer. text: its content, as JSON between the quotes. tokens: how many it decoded."""

    reply: Reply
    choice: Body
    message: Body
    text: bytes
    tokens: int

    @property
    def cut(self) -> bool:
        """Whether it ended for its budget alone."""
        return self.choice.get("finish_reason") == b'"length"'

    @property
    def stuck(self) -> bool:
        """Whether its text is not all that a next leg would have to go on from.

        Nor can one go on from white space alone, which engines trim (transformers, `continue_final_message`).
        """
        content = self.message.get("content", b"null")
        is_text = content.startswith(b'"')
        odd = self.message.value("content").isspace() if is_text else content != b"null"
        return odd or any(self.message.get(name, b"null") not in (b"null", b"[]", b'""') for name in _SAID)


def read(leg: Leg, reply: Reply, most_tokens: int) -> Piece:
    """The piece in a leg's answer. Raises UnusableAnswer when it has not one choice with a message."""
    try:
        [choice] = [Body.parse(one) for one in elements(reply.body.get("choices", b"null"))]
        message = Body.parse(choice.get("message", b"null"))
        tokens = _usage(reply.body).get("completion_tokens")
    except ValueError:  # BadBody, or not one
        raise UnusableAnswer(
            leg, f"the {leg.role} engine's answer has not one choice that can be read"
        ) from None
    content = message.get("content", b"null")
    piece = Piece(reply, choice, message, content[1:-1] if content.startswith(b'"') else b"", 0)
    counted = _count(tokens, 0)
    # An engine that does not count, or counts none, has used the budget up when it was cut: the end of all
    # chunks is the client's limit, which their sum must reach.
    return replace(piece, tokens=counted or (most_tokens if piece.cut and piece.text else 0))


def spent(got: Sequence[Piece]) -> int:
    """How many tokens these have decoded."""
    return sum(piece.tokens for piece in got)


def document(got: Sequence[Piece], cached_tokens: int | None) -> Reply:
    """All pieces as one answer. cached_tokens: the prefiller's count, None to tell the engine's."""
    first, last = got[0].reply, got[-1].reply
    if len(got) == 1 and cached_tokens is None:
        return first
    body = last.body.edited({"usage": _summed(got, cached_tokens)})
    if len(got) > 1:
        text = b'"%b"' % b"".join([piece.text for piece in got])
        choice = got[-1].choice.edited({"message": got[-1].message.edited({"content": text}).encode()})
        body = body.edited({"choices": b"[%b]" % choice.encode(), **{k: first.body.get(k) for k in _NAMES}})
    content = body.encode()
    length = (names.CONTENT_LENGTH, b"%d" % len(content))
    return replace(
        first, headers=(*names.without(first.headers, names.CONTENT_LENGTH), length), content=content
    )


def stream_headers(first: Piece) -> Headers:
    """The headers of the same answer as a stream."""
    kept = names.without(first.reply.headers, names.CONTENT_LENGTH, names.CONTENT_TYPE)
    return ((names.CONTENT_TYPE, names.SSE), *kept)


def event(got: Sequence[Piece], *, last: bool, cached_tokens: int | None) -> bytes:
    """The newest piece as a server-sent event; the last with the usage and the end of the stream."""
    piece = got[-1]
    delta: dict[str, bytes] = {"role": b'"assistant"'} if len(got) == 1 else {}
    delta |= {name: piece.message[name] for name in _TEXTS if piece.message.get(name, b"")[:1] == b'"'}
    delta["content"] = b'"%b"' % piece.text
    choice = {"index": b"0", "delta": Body(delta).encode(), "logprobs": b"null", "finish_reason": b"null"}
    if last:
        choice |= {
            name: piece.choice[name] for name in ("finish_reason", "stop_reason") if name in piece.choice
        }
    said = _event(got[0], {"choices": b"[%b]" % Body(choice).encode()})
    if not last:
        return said
    usage = {"choices": b"[]", "usage": _summed(got, cached_tokens)}
    return b"%b%bdata: [DONE]\n\n" % (said, _event(got[0], usage))


def _event(first: Piece, fields: dict[str, bytes]) -> bytes:
    told = {name: first.reply.body[name] for name in _NAMES if name in first.reply.body}
    whole = {"id": b"null", "object": b'"chat.completion.chunk"', **told, **fields}
    return b"data: %b\n\n" % Body(whole).encode()


def _summed(got: Sequence[Piece], cached_tokens: int | None) -> bytes:
    """The prompt is the first piece's: the others' has the text so far in it."""
    usage = _usage(got[0].reply.body)
    prompt_tokens = _count(usage.get("prompt_tokens"), 0)
    total_tokens = prompt_tokens + spent(got)
    usage |= {"prompt_tokens": prompt_tokens, "total_tokens": total_tokens, "completion_tokens": spent(got)}
    if len(got) > 1:
        usage.pop("completion_tokens_details", None)  # of the first alone
    if cached_tokens is not None:
        details = usage.get("prompt_tokens_details")
        kept = details if isinstance(details, dict) else {}
        usage["prompt_tokens_details"] = {**kept, "cached_tokens": cached_tokens}
    return dump(usage)


def _usage(body: Body) -> dict[str, Any]:
    usage = body.value("usage")
    return usage if isinstance(usage, dict) else {}


def _count(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise
