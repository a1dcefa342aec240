"""How failures look to clients (contract section 9), and which may be retried (section 5)."""

from __future__ import annotations

import json

import pytest

from sidecar import errors, problem
from sidecar.body import Body
from sidecar.endpoint import Endpoint
from sidecar.plan import Leg, Reply, Role

LEG = Leg(Role.PREFILL, Endpoint("10.0.0.3", 8000), b"POST", b"/v1/completions", (), b"{}")


def body_of(error: errors.SidecarError, *, anthropic: bool) -> bytes:
    return problem.body(error.status, error.message, anthropic=anthropic)


def event_of(error: errors.SidecarError, *, anthropic: bool) -> bytes:
    return error.event(anthropic=anthropic)


def refused(status: int, content: bytes = b"") -> errors.LegRefused:
    return errors.LegRefused(LEG, Reply(status, b"", (), content, Body({})))


ANSWERS: dict[str, tuple[errors.SidecarError, int, str]] = {
    "bad request": (errors.BadRequest("m"), 400, "BadRequestError"),
    "too large": (errors.RequestTooLarge("m"), 413, "RequestTooLarge"),
    "leg failed": (errors.LegFailed(LEG, "m"), 502, "BadGateway"),
    "unreachable": (errors.EngineUnreachable(LEG, "m"), 502, "BadGateway"),
    "died": (errors.EngineDied(LEG, "m"), 502, "BadGateway"),
    "unusable": (errors.UnusableAnswer(LEG, "m"), 502, "BadGateway"),
    "not ready": (errors.EngineNotReady(LEG, "m"), 503, "ServiceUnavailable"),
    "connect timeout": (errors.EngineConnectTimeout(LEG, "m"), 504, "GatewayTimeout"),
    "no TLS": (errors.EngineUntrusted(LEG, "m"), 502, "BadGateway"),
    "no resources": (errors.NoResources(LEG, "m"), 503, "ServiceUnavailable"),
    "no memory": (errors.OutOfMemory("m"), 503, "ServiceUnavailable"),
    "fault of ours": (errors.SidecarError("m"), 500, "InternalServerError"),
}


@pytest.mark.parametrize(("error", "status", "kind"), ANSWERS.values(), ids=ANSWERS.keys())
def test_an_error_has_the_flat_and_the_nested_shape(
    error: errors.SidecarError, status: int, kind: str
) -> None:
    content = body_of(error, anthropic=False)
    inner = {"message": "m", "type": kind, "param": None, "code": status}
    assert json.loads(content) == {"object": "error", **inner, "error": inner}
    assert error.status == status


@pytest.mark.parametrize(("error", "status", "kind"), ANSWERS.values(), ids=ANSWERS.keys())
def test_an_error_carries_its_code_in_a_header(error: errors.SidecarError, status: int, kind: str) -> None:
    content = body_of(error, anthropic=False)
    assert sorted(problem.headers(error.status, content)) == [
        (b"content-length", b"%d" % len(content)),
        (b"content-type", b"application/json"),
        (b"x-sidecar-error", b"%d" % status),
    ]


def test_an_encoding_that_cannot_be_read_is_a_415() -> None:
    error = errors.UnsupportedEncoding("m")
    body = json.loads(body_of(error, anthropic=False))
    assert (error.status, body["code"], body["error"]["code"]) == (415, 415, 415)


# https://docs.anthropic.com/en/api/errors
ANTHROPIC = {
    "bad request": "invalid_request_error",
    "too large": "request_too_large",
    "leg failed": "api_error",
    "no resources": "overloaded_error",
    "no memory": "overloaded_error",
    "fault of ours": "api_error",
    "not ready": "overloaded_error",
    "connect timeout": "timeout_error",
}


@pytest.mark.parametrize(("name", "kind"), ANTHROPIC.items())
def test_the_messages_api_has_anthropics_shape(name: str, kind: str) -> None:
    error = ANSWERS[name][0]
    expected = {"type": "error", "error": {"type": kind, "message": "m"}}
    assert json.loads(body_of(error, anthropic=True)) == expected


def test_a_message_with_any_characters_stays_json() -> None:
    error = errors.BadRequest('field "\u00e9\ud83d\n" \u2028')
    for anthropic in (False, True):
        assert json.loads(body_of(error, anthropic=anthropic))["error"]["message"] == error.message


def test_an_error_without_words_still_says_something_and_shows_no_trace() -> None:
    body = json.loads(body_of(errors.SidecarError(), anthropic=False))
    assert body["message"]
    assert "Traceback" not in body["message"]


def _events(stream: bytes) -> list[dict[bytes, bytes]]:
    """The events of an SSE stream as a client reads them (WHATWG HTML 9.2.6), one data line each."""
    blocks = [block for block in stream.split(b"\n\n") if block.strip(b"\n")]
    return [dict(line.split(b": ", 1) for line in block.strip(b"\n").split(b"\n")) for block in blocks]


@pytest.mark.parametrize("sent", [b'data: {"a":1}\n\n', b'data: {"a":1}\n', b'data: {"a":1}', b'data: {"a'])
def test_a_stream_that_dies_ends_with_one_event_of_its_own(sent: bytes) -> None:
    events = _events(sent + event_of(errors.EngineDied(LEG, "gone"), anthropic=False))
    inner = {"message": "gone", "type": "BadGateway", "param": None, "code": 502}
    assert len(events) == 2
    assert json.loads(events[1][b"data"]) == {"error": inner}


def test_a_messages_stream_that_dies_ends_with_anthropics_error_event() -> None:
    stream = b'event: ping\ndata: {"type":"ping"}\n\n'
    event = _events(stream + event_of(errors.EngineDied(LEG, "gone"), anthropic=True))[1]
    assert event[b"event"] == b"error"
    expected = {"type": "error", "error": {"type": "api_error", "message": "gone"}}
    assert json.loads(event[b"data"]) == expected


VLLM = b'{"error":{"message":"boom \\ud83d","type":"InternalServerError","param":null,"code":500}}'
FLAT = b'{"object":"error","message":"boom","type":"overloaded","code":429}'
# What an engine refused with: status, content; what the event says of it: the end of its message, its type.
REFUSALS = {
    "nested": (500, VLLM, ": boom \ud83d", "InternalServerError"),
    "flat": (429, FLAT, ": boom", "overloaded"),
    "without a type": (404, b'{"error":{"message":"no model"}}', ": no model", "NotFoundError"),
    "a text in its place": (422, b'{"error":"boom","message":"flat"}', ": flat", "UnprocessableEntityError"),
    "no words": (503, b'{"error":{}}', "", "ServiceUnavailable"),
    "odd words": (500, b'{"error":{"message":["x"],"type":7}}', "", "InternalServerError"),
    "no JSON": (502, b"<html>", "", "BadGateway"),
    "nothing": (599, b"", "", "EngineError"),
    "long words": (500, b'{"message":"%b"}' % (b"x" * 9000), ": " + "x" * 2000, "InternalServerError"),
    "too long to read": (500, b'{"message":"%b"}' % (b"x" * 70_000), "", "InternalServerError"),
}


@pytest.mark.parametrize(("status", "content", "words", "kind"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refusal_within_a_stream_has_the_engines_own_status_and_words(
    status: int, content: bytes, words: str, kind: str
) -> None:
    message = f"the prefill engine answered {status}{words}"
    [event] = _events(event_of(refused(status, content), anthropic=False))
    inner = {"message": message, "type": kind, "param": None, "code": status}
    assert json.loads(event[b"data"]) == {"error": inner}
    [event] = _events(event_of(refused(status, content), anthropic=True))
    assert json.loads(event[b"data"])["error"]["message"] == message


def test_logs_have_of_a_refusal_only_its_status() -> None:
    assert refused(500, VLLM).message == "the prefill engine answered 500"


def test_only_gateway_statuses_and_missing_connections_are_retried() -> None:
    assert [status for status in range(300, 600) if refused(status).retryable] == [502, 503, 504]
    assert errors.EngineUnreachable(LEG, "m").retryable
    assert not errors.EngineDied(LEG, "m").retryable
    assert not errors.UnusableAnswer(LEG, "m").retryable
    assert not errors.LegFailed(LEG, "m").retryable


def test_every_failure_of_a_leg_names_the_leg_and_has_a_label_of_its_own() -> None:
    failures = [
        refused(404),
        errors.EngineUnreachable(LEG, "m"),
        errors.EngineDied(LEG, "m"),
        errors.UnusableAnswer(LEG, "m"),
    ]
    assert [failure.leg for failure in failures] == [LEG] * 4
    assert len({failure.label for failure in failures}) == 4
