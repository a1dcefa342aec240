"""The slow second path of `body`: splits a JSON object at its top level with the standard library's scanner.

Rule: pure; for texts that msgspec refuses and RFC 8259 does not, and to say what is wrong with the others.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in practice, not in typeshed
from json.scanner import make_scanner
from typing import NoReturn


class BadBody(ValueError):
    """The bytes are not one JSON object; the message says why without repeating them."""


class _Checked:
    """A JSONDecoder-shaped context for the scanner: values are checked and thrown away."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    memo: dict[str, str] = {}  # noqa: RUF012 - the C scanner wants an attribute; it is cleared by the scanner itself

    @staticmethod
    def parse_float(text: str) -> float:
        return 0.0

    @staticmethod
    def parse_int(text: str) -> int:
        return 0  # int() would refuse more than 4,300 digits

    @staticmethod
    def parse_constant(text: str) -> NoReturn:
        raise BadBody("the body is not valid JSON: NaN and Infinity are not JSON")


_scan_once = make_scanner(_Checked())  # type: ignore[arg-type]  # any object with these attributes does
_SPACE = " \t\n\r"
_SPACES = re.compile(f"[{_SPACE}]*")


def scan(raw: bytes | bytearray) -> dict[str, bytes]:
    """The slow second path for texts with lone surrogates: the standard library's scanner, value by value."""
    text = raw.decode()
    try:
        return _object(text)
    except (StopIteration, IndexError):
        raise BadBody("the body is not valid JSON: it is cut short") from None
    except json.JSONDecodeError as error:
        raise BadBody(f"the body is not valid JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise BadBody("the JSON is nested too deeply") from None


def _object(text: str) -> dict[str, bytes]:
    fields: dict[str, bytes] = {}
    at = _expect(text, _skip(text, 0), "{")
    at = _skip(text, at)
    if text[at] == "}":
        _end(text, at + 1)
        return fields
    while True:
        key, at = scanstring(text, _expect(text, at, '"'))
        start = _skip(text, _expect(text, _skip(text, at), ":"))
        _, stop = _scan_once(text, start)
        fields[key] = text[start:stop].encode()
        at = _skip(text, stop)
        if text[at] == "}":
            _end(text, at + 1)
            return fields
        at = _skip(text, _expect(text, at, ","))


def _skip(text: str, at: int) -> int:
    space = _SPACES.match(text, at)
    assert space is not None
    return space.end()


def _expect(text: str, at: int, mark: str) -> int:
    if text[at] != mark:
        raise json.JSONDecodeError(f"expected {mark!r}", text, at)
    return at + 1


def _end(text: str, at: int) -> None:
    if text[at:].strip(_SPACE):
        raise json.JSONDecodeError("text after the object", text, at)
