"""Walks the members of a JSON object one by one, and no further than to a bound.

Rule: pure; for large texts, whose keys would otherwise be made by the million, and for those that msgspec
refuses and RFC 8259 does not. Values are checked by msgspec and never made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in practice, not in typeshed
from typing import Any

import msgspec

# An API has a few dozen fields; a million keys would only hold the event loop up.
MOST_KEYS = 10_000


class BadBody(ValueError):
    """The bytes are not one JSON object; the message says why without repeating them."""


def refusal(error: msgspec.DecodeError | RecursionError) -> BadBody:
    """What is wrong with a text, as msgspec or its depth says."""
    if isinstance(error, msgspec.ValidationError):
        return BadBody("the body must be a JSON object")
    if isinstance(error, RecursionError):
        return BadBody("the JSON is nested too deeply")
    return BadBody(f"the body is not valid JSON: {error}")


def members(text: bytes | bytearray, said: bytes | bytearray) -> Mapping[str, Any] | None:
    """The fields as buffers over `said`, the last of equal keys; None where the text is broken, or `{}`.

    said: a text of the same length whose keys and values are taken, where `text` is checked.
    Each member costs 3 µs, on top of what msgspec takes to skip its value (0.4 ms for a megabyte).
    Raises BadBody for more than MOST_KEYS members, and RecursionError.
    """
    view, at = memoryview(said), 0
    fields: dict[str, Any] = {}
    for number in range(MOST_KEYS + 1):
        member = _MEMBER.match(text, at)
        if member is None or (member[1] == b"{") is not (number == 0):
            return fields if fields and _LAST.fullmatch(text, at) else None
        begin, end = _value(text, member.end())
        key = _key(bytes(view[slice(*member.span(2))]))
        if end is None or key is None:
            return None
        fields[key] = view[member.end() : begin]
        at = end
    raise BadBody(f"the body has more than {MOST_KEYS} fields")


_SPACE = rb"[ \t\n\r]*+"  # RFC 8259 section 2
# What stands before a member's value: its bracket or comma, its key. Possessive, for a key is the client's.
_MEMBER = re.compile(
    _SPACE + rb"([{,])" + _SPACE + rb'("(?:[^"\\]++|\\.)*+")' + _SPACE + b":" + _SPACE, re.DOTALL
)
_LAST = re.compile(rb"\}" + _SPACE)
_VALUE: msgspec.json.Decoder[msgspec.Raw] = msgspec.json.Decoder(msgspec.Raw)
# So msgspec 0.23 says where a text goes on behind its value and white space: one byte after that.
_GOES_ON = re.compile(r"trailing characters \(byte (\d+)\)$")


def _value(text: bytes | bytearray, begin: int) -> tuple[int, int | None]:
    """Where the value that begins there ends, without white space and with it; None where it is none."""
    try:
        _VALUE.decode(memoryview(text)[begin:])
    except msgspec.DecodeError as error:
        if (behind := _GOES_ON.search(str(error))) is not None:
            end = begin + int(behind[1]) - 1
            if text[end - 1] not in b" \t\n\r":
                return end, end
            return begin + len(bytes(text[begin:end]).rstrip(b" \t\n\r")), end
    return begin, None  # not a value, or one with which the text ends


def _key(text: bytes) -> str | None:
    try:
        key: str = scanstring(text.decode(), 1)[0]
    except json.JSONDecodeError:  # a control character, or an escape that is none
        return None
    return key
