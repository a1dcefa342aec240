"""Puts text into columns and colours.

Rule: pure. A column is a character here: what is printed has no wide ones.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

Paint = Callable[[str, str | None], str]
"""Text in a colour; None leaves it as it is."""

# Select Graphic Rendition, ECMA-48 section 8.3.117.
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def plain(text: str, colour: str | None) -> str:
    """No colours at all."""
    del colour
    return text


def coloured(text: str, colour: str | None) -> str:
    """In the terminal's own colours; spaces at the end stay outside, so that nothing is underlined."""
    if colour is None:
        return text
    bare = text.rstrip()
    return f"\x1b[{_COLOURS[colour]}m{bare}\x1b[0m{text[len(bare) :]}"


def padded(text: str, columns: int) -> str:
    """At least so wide, and one space at the end."""
    return text.ljust(columns) if len(text) < columns else f"{text} "


def cut(text: str, columns: int) -> str:
    """At most so wide."""
    return text if len(text) <= columns else f"{text[: columns - 1]}…"


def hung(head: str, text: str, columns: int) -> Iterator[str]:
    """The text behind its head, further lines indented as far."""
    yield from textwrap.wrap(
        text,
        columns,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
    ) or [head.rstrip()]


def size(count: float) -> str:
    """Bytes in a unit that leaves one to three digits before the point."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.2f} GiB"
