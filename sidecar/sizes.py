"""Says whether a JSON text would be too much to decode on the event loop, without decoding it.

Rule: pure, and counts in C alone: 16 MiB of `[],[],…` are 0.1 s here, and 6 s for a decoder with the garbage
collector that looks through so many lists, in which no other request is served.
"""

from __future__ import annotations

# Decoding and looking at so many takes some 0.1 s at worst. A chat with 10,000 content parts has 60,000.
MOST_VALUES = 100_000

# Each value but the first stands behind one of these: behind a comma, or first in its array or object.
_BEFORE_VALUES = (b",", b"[", b"{")


def is_large(text: bytes) -> bool:
    """Whether a valid JSON text has more than MOST_VALUES values, those within values counted too.

    An empty array or object counts as two.
    """
    if len(text) < MOST_VALUES:
        return False
    return _exceeds(text) and _exceeds_outside_strings(text)


def _exceeds(text: bytes) -> bool:
    left = MOST_VALUES
    for mark in _BEFORE_VALUES:
        left -= text.count(mark)
        if left <= 0:
            return True
    return False


def _exceeds_outside_strings(text: bytes) -> bool:
    if b"\\" in text:
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")  # now every quote begins or ends a string
    if text.count(b'"') > 4 * MOST_VALUES:  # keys and values: at least half of the strings are values
        return True
    return _exceeds(b"".join(text.split(b'"')[::2]))
