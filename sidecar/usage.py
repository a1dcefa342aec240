"""Reads and rewrites the count of cached prompt tokens in answers, JSON or SSE.

Rule: pure. After a handoff the decoder reports what it got from the prefiller as cached; the client is told
the prefiller's own count instead. Only that number changes: events without `usage` keep their bytes.
"""

from __future__ import annotations

import re
from typing import Any

from sidecar.api import Api
from sidecar.body import BadBody, Body, dump

# OpenAI's chat and completions APIs, and its Responses API.
_DETAILS = ("prompt_tokens_details", "input_tokens_details")

# One SSE line that is longer passes as it is: no engine's event with usage comes near it.
MAX_LINE_BYTES = 8 * 1024 * 1024


def cached_tokens(answer: Body) -> int:
    """`usage.*_tokens_details.cached_tokens` of an answer; 0 when absent or null (contract section 5)."""
    try:
        usage = answer.value("usage")
    except BadBody:  # nested beyond reading: no count in it
        return 0
    for name in _DETAILS:
        details = usage.get(name) if isinstance(usage, dict) else None
        count: Any = details.get("cached_tokens") if isinstance(details, dict) else None
        if isinstance(count, int) and not isinstance(count, bool):
            return count
    return 0


# Followed by what ends it: else the rest of its digits may be yet to come, or lost.
_COUNT = rb"\s*:\s*(\d{1,12})(?=[\s,}])"
# As every API spells them: OpenAI's, Responses' and Anthropic's names. A quote inside a JSON string is
# escaped, so that nothing in a prompt or a completion can look like one of these keys.
_CACHED = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens)"' + _COUNT)
_PROMPT = re.compile(rb'"(?:prompt_tokens|input_tokens)"' + _COUNT)
# Anthropic's `input_tokens` are without these (vLLM 0.32 anthropic/serving.py); all others count them in.
_APART = [re.compile(rb'"cache_%b_input_tokens"' % kind + _COUNT) for kind in (b"read", b"creation")]


def reported(text: bytes) -> tuple[int | None, int | None]:
    """The prompt tokens, and the cached ones among them, that an answer, or its end, reports; else None."""
    # What stands last stands behind the last such key, mostly, and that is little to look through.
    at = text.rfind(b'"usage"')
    usage = text[at:] if at >= 0 else text
    prompt, cached = _last(_PROMPT, usage, text), None
    if text.find(b"cache") >= 0:  # without `in`, see server/framing.py
        cached = _last(_CACHED, usage, text)
    if prompt is not None and text.find(b"_input_tokens") >= 0:
        prompt += sum(_last(pattern, usage, text) or 0 for pattern in _APART)
    return prompt, cached


def _last(pattern: re.Pattern[bytes], usage: bytes, text: bytes) -> int | None:
    found = pattern.findall(usage) or (pattern.findall(text) if usage is not text else None)
    return int(found[-1]) if found else None


def rewritten(text: bytes, api: Api, tokens: int) -> bytes:
    """A JSON answer, or the JSON of one SSE event, with the count set to `tokens` wherever it has `usage`."""
    try:
        answer = Body.parse(text)
    except BadBody:
        return text
    edited = _with_tokens(answer, api, tokens)
    return text if edited is None else edited.encode()


def _with_tokens(answer: Body, api: Api, tokens: int) -> Body | None:
    if answer.get("usage", b"null") != b"null":
        usage = _edited_usage(answer["usage"], api, tokens)
        return None if usage is None else answer.edited({"usage": usage})
    if "response" in answer:  # the Responses API's events wrap the response that has the usage
        try:
            inner = _with_tokens(Body.parse(answer["response"]), api, tokens)
        except BadBody:
            return None
        return None if inner is None else answer.edited({"response": inner.encode()})
    return None


def _edited_usage(raw: bytes, api: Api, tokens: int) -> bytes | None:
    try:
        usage = Body.parse(raw)
    except BadBody:
        return None
    names = [name for name in _DETAILS if name in usage] or (
        [api.cached_details] if api.cached_details else []
    )
    edits = {name: _edited_details(usage.get(name, b"null"), tokens) for name in names}
    return usage.edited(edits).encode() if edits else None


def _edited_details(raw: bytes, tokens: int) -> bytes:
    try:
        details = Body.parse(raw)
    except BadBody:
        details = Body({})
    return details.edited({"cached_tokens": dump(tokens)}).encode()


class SseUsage:
    """Rewrites the usage in a stream of SSE events, however its bytes are split.

    A complete line leaves with the piece that completes it; only an unfinished line is held back.
    """

    __slots__ = ("_api", "_tail", "_tail_bytes", "_tokens")

    def __init__(self, api: Api, tokens: int) -> None:
        self._api = api
        self._tokens = tokens
        # The unfinished line, in the pieces in which it came: joined once, not with each of them.
        self._tail: list[bytes] = []
        self._tail_bytes = 0

    def feed(self, piece: bytes) -> bytes:
        """Take the next bytes of the stream, give back what can leave now."""
        cut = piece.rfind(b"\n") + 1
        done = self._joined(piece[:cut]) if cut else b""
        if cut < len(piece):
            self._tail.append(piece[cut:])
            self._tail_bytes += len(piece) - cut
            if self._tail_bytes > MAX_LINE_BYTES:
                done += self._joined(b"")
        if b'"usage"' not in done:
            return done
        return b"\n".join([self._line(line) for line in done.split(b"\n")])

    def rest(self) -> bytes:
        """What is left at the end of the stream: a last line without its line end."""
        return self._line(self._joined(b""))

    def _joined(self, end: bytes) -> bytes:
        """What was held back, with its end."""
        if not self._tail:
            return end
        tail, self._tail, self._tail_bytes = self._tail, [], 0
        return b"".join((*tail, end))

    def _line(self, line: bytes) -> bytes:
        if not line.startswith(b"data:") or b'"usage"' not in line:
            return line
        text = line[5:]
        value = text.strip(b" \r")
        start = len(text) - len(text.lstrip(b" \r"))
        before, after = text[:start], text[start + len(value) :]
        return b"".join((b"data:", before, rewritten(value, self._api, self._tokens), after))
