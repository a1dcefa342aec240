"""How much a JSON text would be, told without decoding it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from sidecar import sizes
from sidecar.sizes import MOST_VALUES, is_large
from tests.json_texts import VALUES

# By what each text is made of; the second number is how many values one of them is, keys left out.
ELEMENTS = {
    b"1": 1,
    b'""': 1,
    b'"\\\\"': 1,
    b'"\\""': 1,
    b'"[{,\\",{["': 1,
    b"[1]": 2,
    b'{"a":null}': 2,
    b'{"role":"user","content":[{"type":"x"}]}': 5,
}


@pytest.mark.parametrize("element", ELEMENTS)
def test_a_text_is_large_from_one_value_too_many_on(element: bytes) -> None:
    # Spaces, so that no text is too short to be large: what is short is not looked at.
    spaces, each = b" " * MOST_VALUES, ELEMENTS[element]
    most = (MOST_VALUES - 1) // each
    assert not is_large(b"[" + spaces + b",".join([element] * most) + b"]")
    assert is_large(b"[" + spaces + b",".join([element] * (most + 1)) + b"]")


@pytest.mark.parametrize("text", ["a, [b] {c}", '\\"a\\", \\\\', "\\\\\\"])
def test_what_stands_in_a_string_is_no_value(text: str) -> None:
    texts = [text * 30_000] * 3
    assert not is_large(json.dumps(texts).encode())


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=VALUES)
def test_any_text_is_as_large_as_what_it_decodes_to(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    raw = text.encode()
    values = counted(
        json.loads(text, parse_int=str, object_pairs_hook=lambda pairs: [value for _, value in pairs])
    )
    for most in range(1, values + 3):
        monkeypatch.setattr(sizes, "MOST_VALUES", most)
        assert is_large(raw) == (values > most)


def counted(value: Any) -> int:
    """With all within; an empty one as two."""
    return 1 + (sum(map(counted, value)) or 1) if isinstance(value, list) else 1
