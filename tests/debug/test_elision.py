"""What is shown of legs: no prompt, no text of a user, no credential; the rest as it is on the wire."""

from __future__ import annotations

import json

from sidecar.debug.elision import shown_body, shown_headers

BODY = (
    rb'{"model":"m","messages":[{"role":"user","content":"secret \ud83d"}],"temperature":0.70,'
    rb'"seed":20000000000000000001,"stream":true,"stop":["secret"],"tools":[{"a":"secret"}],"a_key_of_tomorrow":"secret",'
    rb'"sampling_params":{"max_tokens":1,"stop":"secret"},"kv_transfer_params":{"remote_host":"10.0.0.2"}}'
)


def test_only_what_is_known_to_be_no_text_of_the_user_is_shown() -> None:
    body = shown_body(BODY, prompts=False)
    assert body is not None
    assert dict(body) == {
        "model": b'"m"',
        "messages": b'"<elided: 43 bytes>"',
        "temperature": b"0.70",
        "seed": b"20000000000000000001",
        "stream": b"true",
        "stop": b'"<elided: 10 bytes>"',
        "tools": b'"<elided: 16 bytes>"',
        "a_key_of_tomorrow": b'"<elided: 8 bytes>"',
        "sampling_params": b'{"max_tokens":1,"stop":"<elided: 8 bytes>"}',
        "kv_transfer_params": b'{"remote_host":"10.0.0.2"}',
    }
    assert b"secret" not in body.encode()


def test_with_prompts_a_body_is_shown_byte_for_byte() -> None:
    body = shown_body(BODY, prompts=True)
    assert body is not None
    assert body.encode() == BODY


def test_token_ids_are_a_prompt() -> None:
    body = shown_body(b'{"prompt":[1,2,3]}', prompts=False)
    assert body is not None
    assert json.loads(body.encode()) == {"prompt": "<elided: 7 bytes>"}


def test_what_is_no_json_object_is_not_shown() -> None:
    assert shown_body(b"secret", prompts=True) is None


def test_credentials_are_elided_whatever_their_case() -> None:
    headers = (
        (b"Authorization", b"Bearer secret"),
        (b"COOKIE", b"secret"),
        (b"x-api-key", b"k"),
        (b"X-A", b"b"),
    )
    assert shown_headers(headers) == [
        "Authorization: <elided: 13 bytes>",
        "COOKIE: <elided: 6 bytes>",
        "x-api-key: <elided: 1 bytes>",
        "X-A: b",
    ]
