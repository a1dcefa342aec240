"""The guard of the Responses API (contract section 8)."""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.body import Body
from sidecar.errors import BadRequest
from sidecar.responses import check
from tests.engines import COMPLETION, scripted
from tests.json_texts import VALUES, json_objects, objects_of, spelled
from tests.serving import PREFILLER, SOURCE, serving

PATH = "/v1/responses"
UNREADABLE = 'field "input" could not be read as a JSON array or string'


def unsupported(field: str) -> str:
    return f'field "{field}" is not supported by the router'


def message_of(raw: bytes) -> str | None:
    """What the client is told, None when the body may go on."""
    try:
        check(Body.parse(raw))
    except BadRequest as refused:
        return refused.message
    return None


def with_parts(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "hi"}, {"type": "message", "role": "user", "content": list(parts)}]


UPLOAD = {"type": "input_image", "file_id": "file-1"}
REFUSED: dict[str, tuple[str, bytes]] = {
    "an earlier answer": ("previous_response_id", b'{"previous_response_id":"resp_1","input":"x"}'),
    "an empty earlier answer": ("previous_response_id", b'{"previous_response_id":"","input":"x"}'),
    "a conversation": ("conversation", b'{"conversation":{"id":"c"},"input":"x"}'),
    "a conversation by name": ("conversation", b'{"input":"x","conversation":"c"}'),
    "background": ("background", b'{"background":true,"input":"x"}'),
    "background as a text": ("background", b'{"background":"true","input":"x"}'),
    "background as a number": ("background", b'{"background":1,"input":"x"}'),
    "a key in escapes": ("background", b'{"b\\u0061ckground":true,"input":"x"}'),
    "the last of duplicate keys": ("background", b'{"background":false,"background":true}'),
}


@pytest.mark.parametrize(("field", "raw"), REFUSED.values(), ids=REFUSED.keys())
def test_a_field_that_needs_state_is_refused_by_name(field: str, raw: bytes) -> None:
    assert message_of(raw) == unsupported(field)


FILES: dict[str, list[Any]] = {
    "an image": with_parts({"type": "input_text", "text": "x"}, UPLOAD),
    "a file": with_parts({"type": "input_file", "file_id": "file-1", "filename": "x"}),
    "a part of no known kind": with_parts({"type": "input_audio", "file_id": "file-1"}),
    "a part without a kind": with_parts({"file_id": "file-1"}),
    "a part whose kind is odd": with_parts({"type": ["x"], "file_id": "file-1"}),
    "a screenshot": [
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "file_id": "f"}}
    ],
    "output of a function": [{"type": "function_call_output", "call_id": "c", "output": [UPLOAD]}],
    "a bare part": [UPLOAD],
    "deeper than the schema": [[[{"x": [{"y": UPLOAD}]}]]],
    "an empty id": with_parts({"type": "input_file", "file_id": ""}),
}


@pytest.mark.parametrize("value", FILES.values(), ids=FILES.keys())
def test_a_content_part_with_a_file_id_is_refused(value: list[Any]) -> None:
    assert message_of(json.dumps({"input": value}).encode()) == unsupported("file_id")


@given(key=spelled("file_id"))
def test_a_file_id_is_found_however_its_key_is_spelled(key: str) -> None:
    raw = b'{"input":[{"content":[{"type":"input_file",%b:"f"}]}]}' % key.encode()
    assert message_of(raw) == unsupported("file_id")


def test_a_file_id_in_capital_escapes_is_found() -> None:
    raw = b'{"input":[{"content":[{"file\\u005Fid":"f"}]}]}'
    assert message_of(raw) == unsupported("file_id")


@pytest.mark.parametrize("value", [b"7", b"true", b"false", b"{}", b'{"role":"user"}', b"-1.0"])
def test_an_input_that_is_no_text_and_no_array_is_refused(value: bytes) -> None:
    assert message_of(b'{"input":%b}' % value) == UNREADABLE


def test_an_input_that_is_nested_too_deeply_to_look_through_is_refused() -> None:
    deep = b"[" * 900 + b'{"type":"input_file","file_id":"f"}' + b"]" * 900
    # Which of the two depends on how deep this interpreter reads.
    assert message_of(b'{"input":%b}' % deep) in (unsupported("file_id"), UNREADABLE)


ALLOWED: dict[str, Any] = {
    "a text": {"input": "file_id"},
    "nothing": {},
    "null is unset": {"previous_response_id": None, "conversation": None, "background": None, "input": None},
    "background off": {"background": False, "input": []},
    "store": {"store": True, "input": "x"},
    "a null id": {"input": with_parts({"type": "input_image", "file_id": None, "image_url": "data:"})},
    "text that names it": {"input": with_parts({"type": "input_text", "text": '"file_id": "x"'})},
    "an annotation of a replayed answer": {
        "input": with_parts(
            {"type": "output_text", "text": "x", "annotations": [{"type": "file_citation", "file_id": "f"}]}
        )
    },
    "results of a search": {
        "input": [{"type": "file_search_call", "results": [{"file_id": "f", "text": "x"}]}]
    },
    "odd elements": {"input": [None, 7, "file_id", ["file_id"], {"content": "file_id"}]},
    "fields of that name elsewhere": {"input": "x", "metadata": {"file_id": "f", "background": True}},
}


@pytest.mark.parametrize("body", ALLOWED.values(), ids=ALLOWED.keys())
def test_everything_else_may_go_on(body: Any) -> None:
    assert message_of(json.dumps(body).encode()) is None


_PARTS = objects_of("type", "file_id", "content", value=VALUES)
_NAMED = {
    "previous_response_id": VALUES,
    "background": VALUES,
    "input": st.one_of(VALUES, st.lists(_PARTS, max_size=3).map(lambda parts: "[" + ",".join(parts) + "]")),
}


@settings(max_examples=80, deadline=None)
@given(made=json_objects(_NAMED))
def test_any_body_may_go_on_or_is_refused_in_one_of_the_known_sentences(made: Any) -> None:
    known = [None, UNREADABLE]
    known += [
        unsupported(field) for field in ("previous_response_id", "conversation", "background", "file_id")
    ]
    assert message_of(made.text) in known


def test_a_long_input_costs_next_to_nothing() -> None:
    # What Go's encoder makes of HTML, and Python's of accents: escapes, none of them of a letter of the key.
    text = "\\u003cp\\u003e caf\\u00e9 " * 30_000
    body = Body.parse(b'{"input":[{"role":"user","content":"%b"}]}' % text.encode())
    begun_s = process_time()
    for _ in range(10):
        check(body)
    assert (process_time() - begun_s) / 10 < 0.03  # reading 700 KB takes some 5 ms, looking through it 2


@pytest.mark.parametrize(
    "headers", [[], [(SOURCE, "127.9.8.7:8000")], [(PREFILLER, "127.0.0.1:9")]], ids=["decode", "pull", "p/d"]
)
@pytest.mark.parametrize("path", [PATH, "//v1/./responses/"])
async def test_it_is_refused_before_any_leg(path: str, headers: list[tuple[str, str]]) -> None:
    async with scripted() as engine, serving(engine.port, "--kv-connector=offloading") as sidecar:
        answer = await sidecar.post(path, b'{"input":"x","background":true}', headers)
        assert (answer.status, engine.requests) == (400, [])
        assert answer.json["message"] == answer.json["error"]["message"] == unsupported("background")
        assert answer.all("x-sidecar-error") == ["400"]


async def test_what_may_go_on_goes_on_byte_for_byte() -> None:
    body = (
        b'{ "model":"m", "input":[{"role":"user","content":[{"type":"input_text","text":"\\ud83d file_id"}]}'
    )
    body += b'],"store":true , "background":null}'
    async with scripted() as engine, serving(engine.port) as sidecar:
        answer = await sidecar.post(PATH, body)
        assert (answer.status, answer.json, engine.last.body) == (200, COMPLETION, body)


async def test_other_apis_are_not_looked_at() -> None:
    body = b'{"model":"m","prompt":"x","background":true,"previous_response_id":"r","input":7}'
    async with scripted() as engine, serving(engine.port) as sidecar:
        assert (await sidecar.post("/v1/completions", body)).status == 200
        assert engine.last.body == body


def test_an_input_that_names_a_file_is_looked_through_when_it_can_be() -> None:
    harmless = [{"type": "x", "annotations": [{"file_id": "f"}]}] * 15_000
    assert message_of(json.dumps({"input": harmless}).encode()) is None
    assert message_of(json.dumps({"input": [*harmless, UPLOAD]}).encode()) == unsupported("file_id")
    many = 'field "input" holds a file_id among more than 100000 values'
    assert message_of(json.dumps({"input": harmless * 2}).encode()) == many


def test_an_input_of_any_size_may_go_on_when_it_names_no_file() -> None:
    elements: list[Any] = [{"file_id": None}, {"type": "input_text", "text": '"file_id":"f"'}, [], 1]
    for element in elements:
        assert message_of(json.dumps({"input": [element] * 200_000}).encode()) is None
