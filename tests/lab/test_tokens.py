"""The tokenizer."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sidecar.lab import tokens


def test_a_text_always_has_the_same_ids() -> None:
    assert tokens.encode("The quick brown fox") == [13599, 58377, 108505, 74278, 69321, 26071]


def test_about_four_bytes_make_a_token() -> None:
    text = "Prefix blocks of the key value cache are pulled from a peer. " * 10
    assert 0.2 < len(tokens.encode(text)) / len(text) < 0.45


@given(st.text())
def test_every_text_is_tokens_of_the_vocabulary(text: str) -> None:
    assert all(len(tokens.SPECIAL_TOKENS) <= i < tokens.VOCABULARY_TOKENS for i in tokens.encode(text))


def test_a_lone_surrogate_is_a_piece_like_any_other() -> None:
    assert tokens.encode("\ud83d x") != tokens.encode("\ud83e x")


@given(st.lists(st.sampled_from(tokens.SPOKEN_IDS)))
def test_what_an_engine_says_is_read_back_as_the_same_tokens(ids: list[int]) -> None:
    assert tokens.encode(tokens.decode(ids)) == ids


def test_special_tokens_are_silent() -> None:
    assert tokens.decode([tokens.TURN_START, tokens.END_OF_SEQUENCE]) == ""


def test_an_id_that_is_never_spoken_becomes_the_replacement_character() -> None:
    unspoken = next(i for i in range(5, 100) if i not in tokens.SPOKEN_IDS)
    assert tokens.decode([unspoken]) == "\N{REPLACEMENT CHARACTER}"


def test_equal_media_are_one_id_outside_the_vocabulary_and_others_another() -> None:
    image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}
    other = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/b.png"}}
    assert tokens.encode_media(image) == tokens.encode_media(dict(reversed(image.items())))
    assert tokens.encode_media(image) != tokens.encode_media(other)
    assert tokens.encode_media(image) >= tokens.VOCABULARY_TOKENS


def test_spoken_ids_are_distinct() -> None:
    assert all(a < b for a, b in pairwise(sorted(tokens.SPOKEN_IDS)))
