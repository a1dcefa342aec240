"""Reads an explanation (`debug.explain`), which may be what anybody answered, and lays its JSON out.

Rule: pure; what is not of an explanation's shape is refused, whatever it is.
"""

from __future__ import annotations

import json
from typing import Any, NotRequired, TypedDict

import msgspec

from sidecar.body import Body, elements
from sidecar.remote.texts import Unreadable

_MOST_DIGITS = 18


class Request(TypedDict):
    """What was asked about. api: the routed API's name, None for a path that is not routed."""

    method: str
    path: str
    api: str | None


class Refusal(TypedDict):
    """The error that the request would be answered with."""

    status: int
    type: str


class Pull(TypedDict):
    """Where a leg's engine pulls from."""

    source: str


class Leg(TypedDict):
    """One leg. body: of each field its JSON text, as it is spelled on the wire."""

    role: str
    how: str
    when: str | None
    method: str
    url: str
    headers: list[str]
    pull: Pull | None
    body_bytes: int | None
    body: dict[str, Any] | None


class Told(TypedDict):
    """An explanation, as far as a tree shows it."""

    request: Request
    connector: str
    answer: str
    refusal: NotRequired[Refusal]
    why: list[str]
    legs: list[Leg]
    notes: NotRequired[list[str]]


def read(content: bytes) -> Told:
    """The explanation, with the values of bodies as they are spelled on the wire. Raises Unreadable."""
    try:
        told = msgspec.convert(json.loads(content, parse_int=_integer), Told)
        for leg, raw in zip(told["legs"], elements(Body.parse(content)["legs"]), strict=True):
            if leg["body"] is not None:
                fields = Body.parse(Body.parse(raw)["body"])
                leg["body"] = {key: pretty(value, indent=0).decode() for key, value in fields.items()}
    except (ValueError, RecursionError, msgspec.ValidationError):  # no JSON, too deep, another shape
        raise Unreadable("no explanation") from None
    return told


def _integer(digits: str) -> int:
    """Numbers of bodies, which are not used, may have more digits than sys.get_int_max_str_digits."""
    return int(digits[:_MOST_DIGITS])


def pretty(text: bytes, indent: int = 2) -> bytes:
    """A JSON text with line breaks, on one line for 0; as it is where msgspec 0.23 cannot read it."""
    try:
        return msgspec.json.format(text, indent=indent)
    except (msgspec.DecodeError, RecursionError):  # a lone surrogate (see `body`), or depth
        return text
