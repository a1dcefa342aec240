"""The request that is timed, and the reading of its answer."""

from __future__ import annotations

import json

import pytest

from sidecar.endpoint import Endpoint
from sidecar.remote import by_body, by_header, prompts
from sidecar.remote.prompts import NO_PULL

PLAIN = {
    "model": "m",
    "prompt": [1, 2],
    "max_tokens": 1,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def test_without_a_directive_the_body_has_none() -> None:
    assert json.loads(prompts.body("m", (1, 2), NO_PULL, 1)) == PLAIN


def test_an_engine_is_directed_in_the_body() -> None:
    directive = by_body(Endpoint("10.0.0.2", 7777), "id-1")
    source = {"kv_request_id": "id-1", "remote_host": "10.0.0.2", "remote_port": 7777}
    params = {"kv_transfer_params": {"remote_kv_source": source}}
    assert json.loads(prompts.body("m", "text", directive, 1)) == {**PLAIN, "prompt": "text", **params}
    assert directive.headers == {}


def test_a_sidecar_is_directed_by_a_header() -> None:
    directive = by_header(Endpoint("fd00::2", 8000))
    assert directive.headers == {"x-kv-cache-source-host-port": "[fd00::2]:8000"}
    assert json.loads(prompts.body("m", (1, 2), directive, 1)) == PLAIN


@pytest.mark.parametrize(
    ("event", "token"),
    [(b'{"choices":[{"text":"x"}]}', True), (b'{"choices":[],"usage":{}}', False), (b"[DONE]", False)],
)
def test_a_token_is_told_from_what_only_ends_the_stream(event: bytes, token: bool) -> None:
    assert prompts.has_token(event) is token


@pytest.mark.parametrize(
    ("event", "usage"),
    [
        (b'{"usage":{"prompt_tokens":9,"completion_tokens":1}}', (9, 1, None)),
        (b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}', (9, 0, None)),
        (b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":8}}}', (9, 0, 8)),
        (b'{"usage":{"prompt_tokens":%b,"completion_tokens":1}}' % (b"9" * 400), (0, 1, None)),
        (b'{"usage":null}', None),
        (b"[DONE]", None),
    ],
)
def test_usage_is_read_where_it_is(event: bytes, usage: tuple[int, int, int | None] | None) -> None:
    assert prompts.usage_of(event) == usage


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"object":"error","message":"flat","code":400}', "flat"),
        (b'{"error":{"message":"nested"}}', "nested"),
        (b'{"error":"short"}', "short"),
        (b'{"choices":[]}', None),
        (b"<html>", None),
        (b'{"error":{"message":"\\ud800 \\u001b[2J\\nb"}}', r"\ud800 \x1b[2J b"),
        (b'{"error":{"message":"%b"}}' % (b"x" * 999), "x" * 297 + "..."),
        (b'{"error":{"message":[["no text"]]}}', None),
        (b'{"error":' + b"[" * 200_000, None),
    ],
)
def test_an_errors_message_is_found_in_every_shape(content: bytes, message: str | None) -> None:
    assert prompts.error_of(content) == message


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b'{"error":{"message":"m","code":400}}', 400),
        (b'{"message":"m","code":404}', 404),
        (b'{"error":{"message":"m","code":"x"}}', None),
        (b'{"message":"m","code":%b}' % (b"9" * 400), None),
        (b"[]", None),
    ],
)
def test_an_errors_code_is_found_where_the_status_is_200(content: bytes, code: int | None) -> None:
    assert prompts.code_of(content) == code
