"""What is heard of an answer on its way to the client (`sidecar.heard`)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.heard import MAX_BYTES, Heard, Lost

PARAMS = {"do_remote_decode": True, "remote_host": "10.0.0.1"}
MESSAGE: dict[str, Any] = {
    "role": "assistant",
    "content": "A bl\u00f6ck.",
    "refusal": None,
    "tool_calls": [],
    "reasoning": None,
}
CHOICE: dict[str, Any] = {"index": 0, "message": MESSAGE, "finish_reason": "stop", "stop_reason": None}
DOCUMENT: dict[str, Any] = {"id": "c", "choices": [CHOICE], "kv_transfer_params": PARAMS}


def event(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more.pop("choice", {})}
    return b"data: " + json.dumps({"choices": [choice], **more}).encode() + b"\n\n"


STREAM = (
    event({"role": "assistant", "content": ""})
    + event({"content": "A bl"})
    + b": a comment\n\n"
    + event({"content": "\u00f6ck."})
    + event({}, "stop", kv_transfer_params=PARAMS)
    + b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\n'
    + b"data: [DONE]\n\n"
)


def heard(*pieces: bytes) -> Heard:
    listening = Heard()
    for piece in pieces:
        listening.feed(piece)
    listening.end()
    return listening


def said(document: dict[str, Any]) -> Heard:
    return heard(json.dumps(document).encode())


def test_a_document_tells_text_and_params() -> None:
    got = said(DOCUMENT)
    assert (got.lost, got.text, got.params) == (None, "A bl\u00f6ck.", PARAMS)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8).map(sorted), st.sampled_from([b"\n", b"\r\n"]))
def test_a_stream_tells_the_same_however_it_is_split(cuts: list[int], line_end: bytes) -> None:
    stream = STREAM.replace(b"\n", line_end)
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    got = heard(*pieces)
    assert (got.lost, got.text, got.params) == (None, "A bl\u00f6ck.", PARAMS)


def test_a_document_may_come_byte_by_byte() -> None:
    text = json.dumps(DOCUMENT).encode()
    got = heard(*[text[at : at + 1] for at in range(len(text))])
    assert (got.lost, got.text) == (None, "A bl\u00f6ck.")


def with_choice(**more: Any) -> dict[str, Any]:
    return {**DOCUMENT, "choices": [{**CHOICE, **more}]}


def with_message(**more: Any) -> dict[str, Any]:
    return with_choice(message={**MESSAGE, **more})


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({**DOCUMENT, "kv_transfer_params": None}, Lost.NO_PARAMS),
        ({"choices": [CHOICE]}, Lost.NO_PARAMS),
        ({**DOCUMENT, "kv_transfer_params": "x"}, Lost.NO_PARAMS),
        (with_message(tool_calls=[{"id": "1"}]), Lost.NOT_PLAIN),
        (with_message(reasoning="hm"), Lost.NOT_PLAIN),
        (with_message(reasoning_content="hm"), Lost.NOT_PLAIN),
        (with_message(refusal="no"), Lost.NOT_PLAIN),
        (with_message(a_field_of_tomorrow=1), Lost.NOT_PLAIN),
        (with_message(content=[{"type": "text"}]), Lost.NOT_PLAIN),
        (with_choice(finish_reason="tool_calls"), Lost.NOT_PLAIN),
        (with_choice(finish_reason="abort"), Lost.NOT_PLAIN),
        ({**DOCUMENT, "choices": [CHOICE, {**CHOICE, "index": 1}]}, Lost.NOT_PLAIN),
        (with_choice(stop_reason="\n\n"), Lost.STOPPED),
        (with_choice(stop_reason=13), Lost.STOPPED),
        ({**DOCUMENT, "choices": 5}, Lost.UNREADABLE),
        ({**DOCUMENT, "choices": [5]}, Lost.UNREADABLE),
        (with_choice(message="x"), Lost.UNREADABLE),
    ],
)
def test_what_may_not_be_rendered_as_the_model_wrote_it_is_given_up(
    document: dict[str, Any], why: Lost
) -> None:
    got = said(document)
    assert (got.lost, got.text, got.params) == (why, "", {})


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (event({"tool_calls": [{"index": 0}]}, kv_transfer_params=PARAMS), Lost.NOT_PLAIN),
        (event({"reasoning": "hm"}, kv_transfer_params=PARAMS), Lost.NOT_PLAIN),
        (event({}, "stop", choice={"stop_reason": "x"}, kv_transfer_params=PARAMS), Lost.STOPPED),
        (event({"content": "b"}, choice={"index": 1}, kv_transfer_params=PARAMS), Lost.NOT_PLAIN),
        (b"data: {\n\n", Lost.UNREADABLE),
        (b"data: 5\n\n", Lost.UNREADABLE),
        (event({}, "stop"), Lost.NO_PARAMS),
    ],
)
def test_so_is_a_stream(last: bytes, why: Lost) -> None:
    got = heard(event({"content": "a"}), last, b"data: [DONE]\n\n")
    assert (got.lost, got.text, got.params) == (why, "", {})


@pytest.mark.parametrize("text", [b"", b"{", b"\x1f\x8b\x08compressed\n", b"[]", b"null"])
def test_bytes_that_are_no_chat_answer_are_given_up(text: bytes) -> None:
    assert heard(text).lost in (Lost.UNREADABLE, Lost.NO_PARAMS)


@pytest.mark.parametrize(
    "pieces",
    [
        [b'{"a":"' + b"x" * MAX_BYTES],
        [b"data: " + b"x" * MAX_BYTES],
        [event({"content": "x" * 1024})] * (MAX_BYTES // 1024 + 1),
    ],
    ids=["a document", "a line", "a text"],
)
def test_what_is_over_the_bound_is_given_up_and_nothing_of_it_is_kept(pieces: list[bytes]) -> None:
    listening = Heard()
    for piece in pieces:
        listening.feed(piece)
    assert listening.lost is Lost.TOO_LONG
    listening.feed(event({}, "stop", kv_transfer_params=PARAMS))
    listening.end()
    assert (listening.lost, listening.text, listening.params) == (Lost.TOO_LONG, "", {})


def test_a_long_stream_of_a_short_text_is_within_the_bound() -> None:
    padding = b": " + b"x" * 10_000 + b"\n\n"
    got = heard(*[padding] * 200, STREAM)
    assert got.text == "A bl\u00f6ck."
