"""How an error that the sidecar answers itself looks on the wire (contract section 9).

Rule: pure; the one place of error types and shapes, for routing and for the HTTP server alike.
"""

from __future__ import annotations

import json

from sidecar.body import BadBody, Body

# OpenAI's names where it has one, the HTTP phrase in one word elsewhere.
_TYPES = {
    400: "BadRequestError",
    403: "Forbidden",
    408: "RequestTimeout",
    413: "RequestTooLarge",
    415: "UnsupportedMediaType",
    417: "ExpectationFailed",
    431: "RequestHeaderFieldsTooLarge",
    500: "InternalServerError",
    502: "BadGateway",
    503: "ServiceUnavailable",
    504: "GatewayTimeout",
}
# Of statuses that only engines answer with: an event tells them when the engine names no type itself.
_ENGINES_TYPES = {
    401: "AuthenticationError",
    404: "NotFoundError",
    409: "ConflictError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
}

# Anthropic's API reference, "Errors"; statuses it does not name are its "api_error".
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    503: "overloaded_error",
    504: "timeout_error",
}


# An engine's error is some hundred bytes; one that is much longer is not looked into.
_READ_BYTES = 64 * 1024
_SHOWN_CHARACTERS = 2000


def kind(status: int) -> str:
    """The `type` of an error of this status, an engine's too."""
    return _TYPES.get(status) or _ENGINES_TYPES.get(status, "EngineError")


def told(content: bytes) -> tuple[str | None, str | None]:
    """The message and the type in an engine's own error, None where it has none.

    vLLM 0.32 nests them in `error`; older ones, and SGLang, have them flat.
    """
    if len(content) > _READ_BYTES:
        return None, None
    try:
        said = Body.parse(content)
        if (nested := said.get("error", b"")).startswith(b"{"):
            said = Body.parse(nested)
        texts = [said.value(name) for name in ("message", "type")]
    except BadBody:
        return None, None
    message, own_kind = [text[:_SHOWN_CHARACTERS] if isinstance(text, str) else None for text in texts]
    return message, own_kind


def body(status: int, message: str, *, anthropic: bool = False) -> bytes:
    """The JSON body: the peer's flat shape and the nested one that OpenAI's clients read, or Anthropic's."""
    if anthropic:
        inner = {"type": _ANTHROPIC_TYPES.get(status, "api_error"), "message": message}
        return _dump({"type": "error", "error": inner})
    fields = _fields(status, message)
    return _dump({"object": "error", **fields, "error": fields})


def headers(status: int, content: bytes) -> list[tuple[bytes, bytes]]:
    """The headers of an error answer with this body."""
    return [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(content)),
        (b"x-sidecar-error", b"%d" % status),
    ]


def text_headers(status: int, content: bytes) -> list[tuple[bytes, bytes]]:
    """The headers of an error answer that is plain text."""
    kind_of_text = (b"content-type", b"text/plain; charset=utf-8")
    return [kind_of_text, *headers(status, content)[1:]]


def sse_event(status: int, message: str, *, anthropic: bool = False, own_kind: str | None = None) -> bytes:
    """One SSE event that ends a stream whose engine died, behind line ends in case a line is open.

    own_kind: an engine's own, in the place of the status's.
    """
    if anthropic:
        return b"\n\nevent: error\ndata: " + body(status, message, anthropic=True) + b"\n\n"
    return b"\n\ndata: " + _dump({"error": _fields(status, message, own_kind)}) + b"\n\n"


def _fields(status: int, message: str, own_kind: str | None = None) -> dict[str, object]:
    return {"message": message, "type": own_kind or kind(status), "param": None, "code": status}


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
