"""Finds the events in a piece of a server-sent event stream.

Rule: pure; the format is that of the HTML standard, section 9.2.6.
"""

from __future__ import annotations

import re

# An event ends at an empty line; lines end with LF, CR LF or CR.
_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LINE_END = re.compile(rb"\r\n|\n|\r")


def complete_events(text: bytes) -> list[bytes]:
    """The data of each event that is complete in `text`, several `data:` lines joined by LF; others without
    data (comments) are left out.
    """
    blocks = _BLANK_LINE.split(text)[:-1]
    return [value for block in blocks if (value := _value(block)) is not None]


def _value(block: bytes) -> bytes | None:
    lines = [line[5:].removeprefix(b" ") for line in _LINE_END.split(block) if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
