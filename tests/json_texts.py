"""JSON texts as clients may write them, and a reader of their top-level members that is not the sidecar's.

Rule: texts are generated letter by letter, never dumped from values, so that spacing, escapes, the spelling
of numbers, duplicate keys and key order vary as they do on the wire.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True, slots=True)
class JsonObject:
    """One object: its whole text, and its members in the order written (decoded key, value's own bytes)."""

    text: bytes
    members: tuple[tuple[str, bytes], ...]

    @property
    def fields(self) -> dict[str, bytes]:
        """Contract section 3: the last of duplicate keys wins; the order is that of the first."""
        return dict(self.members)


_SPACE = st.sampled_from(("", "", "", " ", "\t", "\n", "\r\n  "))
_PLAIN = st.characters(min_codepoint=0x20, exclude_categories=["Cs"], exclude_characters='"\\')
# The last five: surrogates that are lone, lone, paired, before a letter, swapped.
_ESCAPES = (
    r"\" \\ \/ \b \f \n \r \t \u0000 \u0022 \u00E9 \u2028 \ud83d \uDE00 \ud83d\ude00 \uD83DA \ude00\ud83d"
)
_ESCAPE = st.sampled_from(_ESCAPES.split())
STRINGS: SearchStrategy[str] = st.lists(st.one_of(_PLAIN, _ESCAPE), max_size=4).map(
    lambda parts: '"' + "".join(parts) + '"'
)
NUMBERS: SearchStrategy[str] = st.one_of(
    st.sampled_from(
        ("0", "-0", "1.0", "1e-7", "12345678901234567890", "-1E+9", "0.10", "1e999", "9" * 5000, "-0.0e-0")
    ),
    st.from_regex(re.compile(r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,5})?([eE][+-]?[0-9]{1,3})?"), fullmatch=True),
)
_LITERALS = st.sampled_from(("null", "true", "false"))
_DEEP = st.integers(1, 60).map(lambda levels: '[{"a":' * levels + "1" + "}]" * levels)


def _array(inner: SearchStrategy[str]) -> SearchStrategy[str]:
    items = st.lists(inner, max_size=3)
    return st.tuples(_SPACE, items, _SPACE).map(
        lambda made: "[" + (made[0] + "," + made[2]).join(made[1]) + "]"
    )


def _object(inner: SearchStrategy[str]) -> SearchStrategy[str]:
    member = st.tuples(STRINGS, _SPACE, inner).map(lambda made: made[0] + made[1] + ":" + made[1] + made[2])
    return st.lists(member, max_size=3).map(lambda members: "{" + " ,".join(members) + "}")


VALUES: SearchStrategy[str] = st.recursive(
    st.one_of(_LITERALS, NUMBERS, STRINGS, _DEEP),
    lambda inner: st.one_of(_array(inner), _object(inner)),
    max_leaves=4,
)


def spelled(key: str) -> SearchStrategy[str]:
    """A key as a JSON string: plain, with one letter escaped, or all of them."""
    escaped = [f"\\u{ord(letter):04x}" for letter in key]
    return st.sampled_from((f'"{key}"', f'"{key}"', f'"{escaped[0]}{key[1:]}"', f'"{"".join(escaped)}"'))


def json_objects(
    named: Mapping[str, SearchStrategy[str]] | None = None, most: int = 7
) -> SearchStrategy[JsonObject]:
    """Any object of so many members at most; its keys are often those of `named`, with values of the strategy
    given there."""
    kinds = [st.tuples(STRINGS, VALUES)]
    kinds += [st.tuples(spelled(key), value) for key, value in (named or {}).items()]
    member = st.tuples(_SPACES_AROUND, st.one_of(kinds))
    return st.tuples(_SPACE, st.lists(member, max_size=most), _SPACE).map(_assembled)


def objects_of(*keys: str, value: SearchStrategy[str] = VALUES, most: int = 7) -> SearchStrategy[str]:
    """The text of an object whose keys are often these. most: of members, fewer for one within others."""
    made = json_objects(dict.fromkeys(keys, value), most)
    return made.map(lambda made: made.text.decode().strip(" \t\r\n"))


# What stands before the key, before and after the colon, and after the value.
_SPACES_AROUND = st.sampled_from(
    (("", "", "", ""), ("", "", "", ""), ("", "", " ", ""), ("\n  ", " ", "\t", "\r\n"), (" ", "\n", "", " "))
)


def _assembled(parts: tuple[str, list[tuple[tuple[str, str, str, str], tuple[str, str]]], str]) -> JsonObject:
    before, written, after = parts
    members: list[tuple[str, bytes]] = []
    texts: list[str] = []
    for (space, left, middle, right), (key, value) in written:
        members.append((json.loads(key), value.encode()))
        texts.append("".join((space, key, left, ":", middle, value, right)))
    return JsonObject((before + "{" + ",".join(texts) + "}" + after).encode(), tuple(members))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_int=str, parse_float=str)
_SPACES = re.compile(r"[ \t\n\r]*")


def is_one_object(text: bytes) -> bool:
    """Whether the bytes are one JSON object by RFC 8259, asked of the standard library at its strictest."""
    try:
        return isinstance(json.loads(text.decode(), cls=None, parse_constant=_refuse, parse_int=str), dict)
    except ValueError:
        return False


def members_of(text: bytes) -> list[tuple[str, bytes]]:
    """The top-level members of a JSON object in order, duplicates too, each value as its own bytes."""
    assert is_one_object(text), text
    decoded = text.decode()
    found: list[tuple[str, bytes]] = []
    at = _past_space(decoded, _past_space(decoded, 0) + 1)
    while decoded[at] != "}":
        key, at = _DECODER.raw_decode(decoded, at)
        start = _past_space(decoded, _past_space(decoded, at) + 1)
        _, stop = _DECODER.raw_decode(decoded, start)
        found.append((key, decoded[start:stop].encode()))
        at = _past_space(decoded, stop)
        if decoded[at] == ",":
            at = _past_space(decoded, at + 1)
    return found


def less(value: bytes, *path: str) -> bytes:
    """The value without what stands at `path` in it; the same bytes when nothing does."""
    if not value.startswith(b"{"):
        return value
    members = dict(members_of(value))
    if path[0] not in members:
        return value
    if len(path) == 1:
        del members[path[0]]
    else:
        inner = less(members[path[0]], *path[1:])
        if inner == members[path[0]]:
            return value
        members[path[0]] = inner
    return b"{" + b",".join([json.dumps(key).encode() + b":" + text for key, text in members.items()]) + b"}"


def decoded(value: bytes) -> Any:
    """The value with numbers as they are spelled and objects as lists of their members, duplicates too."""
    return json.loads(value, parse_int=str, parse_float=str, object_pairs_hook=list)


def _past_space(text: str, at: int) -> int:
    match = _SPACES.match(text, at)
    assert match is not None
    return match.end()
