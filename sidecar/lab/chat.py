"""The chat template: messages, tools and template options to token ids.

Rule: whatever shapes the prompt of a real engine changes the tokens, and nothing else does (not `stream`,
limits, `tool_choice` or sampling).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sidecar.lab.faults import ApiError
from sidecar.lab.tokens import TURN_END, TURN_START, encode, encode_media

TEMPLATE_FIELDS = ("documents", "chat_template", "chat_template_kwargs", "reasoning_effort")
"""Request fields of vLLM's chat API that reach the template."""

_TEXT_PARTS = ("text", "input_text", "output_text", "refusal", "thinking")


def render(messages: object, request: Mapping[str, object]) -> list[int]:
    """Tokens of a conversation; raises ApiError (400) when `messages` has not the shape of one."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ApiError("messages must be a non-empty array", param="messages")
    ids = _preamble(request)
    for message in messages:
        ids += _turn(message)
    if request.get("continue_final_message"):
        return ids[:-2]  # the final message stays open: no end of turn, no line break
    if request.get("add_generation_prompt", True):
        ids += [TURN_START, *encode("assistant\n")]
    return ids


def _preamble(request: Mapping[str, object]) -> list[int]:
    ids: list[int] = []
    for name in ("tools", *TEMPLATE_FIELDS):
        if request.get(name):
            ids += [TURN_START, *encode(f"{name}\n{_canonical(request[name])}"), TURN_END]
    return ids


def _turn(message: object) -> list[int]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role", "user"), str):
        raise ApiError("each message must be an object with a role", param="messages")
    # Items of the Responses API (function calls, reasoning) have a type and no role.
    ids = [TURN_START, *encode(f"{message.get('role', message.get('type', 'user'))}\n")]
    ids += render_content(message.get("content"))
    extra = {key: value for key, value in message.items() if key not in ("role", "content", "type") and value}
    if extra:
        ids += encode(_canonical(extra))
    return [*ids, TURN_END, *encode("\n")]


def render_content(content: object) -> list[int]:
    """Tokens of a message's content: a text, a list of parts, or nothing."""
    if content is None:
        return []
    if isinstance(content, str):
        return encode(content)
    if not isinstance(content, Sequence):
        raise ApiError("content must be a string or an array of parts", param="messages")
    ids: list[int] = []
    for part in content:
        ids += _part(part)
    return ids


def _part(part: object) -> list[int]:
    if isinstance(part, str):
        return encode(part)
    if not isinstance(part, Mapping):
        raise ApiError("each content part must be an object", param="messages")
    if part.get("type") in _TEXT_PARTS:
        text = part.get("text", part.get(str(part.get("type")), ""))
        return encode(text if isinstance(text, str) else _canonical(text))
    if part.get("type") in ("tool_use", "tool_result"):
        return encode(_canonical(part))
    return [encode_media(part)]


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
