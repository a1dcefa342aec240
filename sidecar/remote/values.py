"""Reads the values of flags that commands over HTTP share: URLs, headers, numbers, durations, names of files.

Rule: no I/O; what is none is refused with what is wanted, in a sentence that stands behind the flag's name.
Of a header's value, which may be a credential, and of a URL's password nothing is ever repeated.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import httpx

from sidecar.endpoint import Endpoint
from sidecar.headers import DATA_PARALLEL, ROUTING
from sidecar.remote.place import MalformedPlace, Place
from sidecar.remote.texts import quoted
from sidecar.settings.durations import parse_duration

Read = TypeVar("Read")

# RFC 9110 section 5.6.2 (tokens) and 5.5 (values; obs-text has no meaning that both ends share).
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}", re.ASCII)
_VALUE = re.compile(r"[\x20-\x7e\t]*", re.ASCII)
# Servers read 8 to 64 KiB of headers; a credential, which a token of a cloud may be, takes 4.
_MOST_VALUE_CHARACTERS = 8192
# Framing, the connection, and what these commands set themselves on each request: where a leg goes, too.
_OWN = frozenset(
    (
        *("accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect"),
        *("host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *(name.decode() for name in ROUTING - {DATA_PARALLEL}),
    )
)
DAY_S = 24 * 3600.0
"""The longest duration: nobody waits longer for one answer."""


def kind(read: Callable[[str], Read], wanted: str) -> Callable[[str], Read]:
    """A reader whose refusal says what is wanted. `read` raises ValueError."""

    def value(text: str) -> Read:
        try:
            return read(text)
        except ValueError:
            raise ArgumentTypeError(f"{quoted(text)} is not {wanted}") from None

    return value


def whole(least: int, most: int) -> Callable[[str], int]:
    """A reader of a whole number within bounds, both told in its refusal."""

    def read(text: str) -> int:
        return number(text, least, most)

    return kind(read, f"a whole number from {least:,} to {most:,}")


def number(text: str, least: int, most: int) -> int:
    """Raises ValueError for what is none, or out of bounds."""
    if not text.isascii() or not text.isdecimal() or len(text) > len(str(most)):
        raise ValueError(text)
    if not least <= (value := int(text)) <= most:
        raise ValueError(text)
    return value


def duration(text: str) -> float:
    """Seconds, more than none. Raises ArgumentTypeError."""
    try:
        value_s = parse_duration(text)
    except ValueError:
        value_s = 0.0
    if not 0 < value_s <= DAY_S:
        raise ArgumentTypeError(f"{quoted(text)} is not a duration up to 24h, such as 500ms, 20s or 2m")
    return value_s


def filename(text: str) -> str:
    """A path, or `-`. Raises ArgumentTypeError for none."""
    if not text:
        raise ArgumentTypeError("no file is named")
    return text


def name(text: str) -> str:
    """A model's. Raises ArgumentTypeError for an empty one, and for one that cannot be sent or printed."""
    if not text or not text.isprintable():
        raise ArgumentTypeError(f"{quoted(text)} is not a name")
    return text


def url(text: str) -> Place:
    """A pod's. Raises ArgumentTypeError."""
    try:
        place = Place.parse(text)
        _ = httpx.URL(place.url).host  # is decoded now
    except MalformedPlace as error:
        raise ArgumentTypeError(f"{error}; such as http://10.0.0.1:8000") from None
    except (httpx.InvalidURL, UnicodeError):  # RFC 5891: a label of xn-- and no name
        raise ArgumentTypeError(f"{quoted(text)} has a host that no name service knows") from None
    return place


endpoint = kind(Endpoint.parse, "HOST:PORT")


def header(text: str) -> tuple[str, str]:
    """Name, in lower case, and value of `NAME: VALUE`. Raises ArgumentTypeError, without the value."""
    name, colon, value = text.partition(":")
    name, value = name.strip(" \t").lower(), value.strip(" \t")
    if not colon or not _TOKEN.fullmatch(name):
        raise ArgumentTypeError("not 'NAME: VALUE' with a header's name (what was given is not shown)")
    if name in _OWN:
        raise ArgumentTypeError(f"{name} is the command's own")
    if not _VALUE.fullmatch(value):
        raise ArgumentTypeError(f"the value of {name} has other characters than printable ASCII")
    if len(value) > _MOST_VALUE_CHARACTERS:
        raise ArgumentTypeError(f"the value of {name} has over {_MOST_VALUE_CHARACTERS:,} characters")
    return name, value


def headers(given: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """All that were given. Raises ValueError for a name that was given twice: one would be lost."""
    found: dict[str, str] = {}
    for name, value in given:
        if name in found:
            raise ValueError(f"{name} is given twice")
        found[name] = value
    return found
