"""Makes what a peer says fit for a terminal and a report, and reads its JSON without accidents.

Rule: pure; everything that a peer says and that is shown comes through `shown`, every JSON of a peer through
`decoded`.
"""

from __future__ import annotations

import json
from typing import Any

MOST_CHARACTERS = 300
"""Of a sentence of a peer so much is shown: three lines of a terminal."""

# A URL or a path, and enough of anything else to know it again.
_MOST_QUOTED_CHARACTERS = 100


class Unreadable(ValueError):
    """No JSON, or none that can be read; the message says which, without any of it."""


def shown(text: str, most: int = MOST_CHARACTERS) -> str:
    """In one line of at most `most` characters that can be printed: controls and surrogates are escaped.

    What turns the direction of writing, and spaces that look like none, are escaped as well.
    """
    told = printable(text[:most])
    return told if len(text) <= most and len(told) <= most else f"{told[: most - 3]}..."


def printable(text: str) -> str:
    """The same, whole: on one line, however long."""
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def quoted(text: str) -> str:
    """A flag's value, as a refusal names it."""
    return f"'{shown(text, _MOST_QUOTED_CHARACTERS)}'"


def _escaped(character: str) -> str:
    return " " if character in "\r\n\t" else character.encode("unicode_escape").decode()


def decoded(content: bytes) -> Any:
    """The value of a JSON text (RFC 8259). Raises Unreadable, of one too deep too."""
    try:
        return json.loads(content)
    except RecursionError:
        raise Unreadable("JSON nested too deep") from None
    except ValueError:  # no JSON or no UTF-8; digits beyond sys.get_int_max_str_digits
        raise Unreadable("no JSON") from None
