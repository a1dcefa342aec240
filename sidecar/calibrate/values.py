"""Reads the values of `sidecar calibrate`'s flags.

Rule: what is none is refused with what is wanted; nothing is guessed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from sidecar.endpoint import Endpoint
from sidecar.remote.place import Place
from sidecar.settings.durations import parse_duration

Read = TypeVar("Read")


def kind(read: Callable[[str], Read], wanted: str) -> Callable[[str], Read]:
    """A reader whose refusal says what is wanted. `read` raises ValueError."""

    def value(text: str) -> Read:
        try:
            return read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None

    return value


def _number(text: str, least: int) -> int:
    if not text.isascii() or not text.isdecimal() or not least <= int(text) <= _MOST:
        raise ValueError
    return int(text)


_MOST = 10_000_000
"""Of any count: more than any model's context, any number of rounds or requests."""


def lengths(text: str) -> tuple[int, ...]:
    """Token counts. Raises ValueError."""
    return tuple(_number(item.strip(), 1) for item in text.split(","))


def headroom(text: str) -> float:
    """A factor. Raises ValueError."""
    value = float(text)
    if not 1 <= value <= 100:
        raise ValueError
    return value


def timeout(text: str) -> float:
    """Seconds. Raises ValueError."""
    value = parse_duration(text)
    if value <= 0:
        raise ValueError
    return value


def header(text: str) -> tuple[str, str]:
    """Name and value. Raises ValueError."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ValueError
    return name.strip(), value.strip()


COUNT = kind(lambda text: _number(text, 1), "a whole number from 1 on")
SOME = kind(lambda text: _number(text, 0), "a whole number from 0 on")
URL = kind(Place.parse, "an http or https URL of a pod, such as http://10.0.0.1:8000")
ENDPOINT = kind(Endpoint.parse, "HOST:PORT")
