"""What peers say, on a terminal."""

from __future__ import annotations

import pytest

from sidecar.remote.texts import Unreadable, decoded, quoted, shown


@pytest.mark.parametrize(
    ("text", "fit"),
    [
        ("Modèle 東京", "Modèle 東京"),
        ("a\r\nb\tc", "a  b c"),
        ("\x1b]0;title\x07\x9b2J\x7f", r"\x1b]0;title\x07\x9b2J\x7f"),
        ("\ud800\u202e\u2028\u00a0", r"\ud800\u202e\u2028\xa0"),
        ("x" * 301, "x" * 297 + "..."),
        ("\x1b" * 300, (r"\x1b" * 75)[:297] + "..."),
    ],
)
def test_it_is_printable_on_one_line_and_bounded(text: str, fit: str) -> None:
    assert shown(text) == fit


def test_a_flags_value_is_named_so_too() -> None:
    assert quoted("a\x1b") == r"'a\x1b'"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[" * 200_000, "JSON nested too deep"),
        (b"<html>", "no JSON"),
        (b'"\xff"', "no JSON"),
        (b"1" * 5000, "no JSON"),
    ],
)
def test_json_that_cannot_be_read_is_said_to_be_so(content: bytes, why: str) -> None:
    with pytest.raises(Unreadable, match=f"^{why}$"):
        decoded(content)


def test_json_that_can_be_read_is() -> None:
    assert decoded(b'{"a":[1,"\\ud83d\\ude00"]}') == {"a": [1, "\U0001f600"]}
