"""The one tree of failures, and how each looks to a client (contract section 9).

Rule: pure. Each class carries its status, its code and type, and whether sending the leg again can help.
Engines' own error answers are not here: they pass through unchanged as replies.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from sidecar.plan import Leg, Reply


class SidecarError(Exception):
    """A request that the sidecar answers itself. The message is for the client and repeats no body."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "InternalServerError"

    @property
    def message(self) -> str:
        """What the client reads."""
        return str(self) or "internal error in the routing sidecar"


class BadRequest(SidecarError):
    """The client's request cannot be routed as it is; the message names the field or header."""

    status = 400
    type = "BadRequestError"


class RequestTooLarge(SidecarError):
    """A body that must be read is over `--max-request-bytes`."""

    status = 413
    type = "RequestTooLarge"


class UnsupportedEncoding(SidecarError):
    """A body that must be read has a `Content-Encoding` that the sidecar cannot decode."""

    status = 415
    type = "UnsupportedMediaType"


class LegFailed(SidecarError):
    """A leg got no usable answer. Thrown into the plan at its `yield`.

    label: how spans, logs and metrics call it. retryable: sending the same leg again can help.
    """

    status = 502
    type = "BadGateway"
    label: ClassVar[str] = "failed"

    def __init__(self, leg: Leg, message: str) -> None:
        super().__init__(message)
        self.leg = leg

    @property
    def retryable(self) -> bool:
        """Whether the request surely ran nowhere, so that it may be sent again (contract section 5)."""
        return False


class LegRefused(LegFailed):
    """The engine answered with a status other than 2xx: `reply`, which is relayed verbatim."""

    label = "refused"

    def __init__(self, leg: Leg, reply: Reply) -> None:
        super().__init__(leg, f"the {leg.role} engine answered {reply.status}")
        self.reply = reply

    @property
    def retryable(self) -> bool:
        """Only gateway statuses say that nothing ran."""
        return self.reply.status in (502, 503, 504)


class EngineUnreachable(LegFailed):
    """No connection to the engine: refused, no route, name unknown, or the connect timeout ran out."""

    label = "unreachable"

    @property
    def retryable(self) -> bool:
        """Nothing was sent."""
        return True


class EngineNotReady(EngineUnreachable):
    """The local engine refuses connections: it is starting, or it is down (503)."""

    status = 503
    type = "ServiceUnavailable"


class EngineConnectTimeout(EngineUnreachable):
    """The connect timeout ran out (504)."""

    status = 504
    type = "GatewayTimeout"


class EngineDied(LegFailed):
    """The connection ended before the whole answer had come."""

    label = "died"


class UnusableAnswer(LegFailed):
    """A 2xx answer that the plan needs to read is not the JSON object that it must be."""

    label = "unusable"


def error_body(error: SidecarError, *, anthropic: bool) -> bytes:
    """The JSON body of an error answer: the peer's flat shape with the nested one, or Anthropic's.

    Source: contract section 9; Anthropic's error shape from its API reference, "Errors".
    """
    if anthropic:
        inner = {"type": _ANTHROPIC_TYPES.get(error.status, "api_error"), "message": error.message}
        return _dump({"type": "error", "error": inner})
    inner_fields = {"message": error.message, "type": error.type, "param": None, "code": error.status}
    return _dump({"object": "error", **inner_fields, "error": inner_fields})


def sse_error_event(error: SidecarError, *, anthropic: bool) -> bytes:
    """One SSE event that ends a stream whose engine died, preceded by a line end in case one is open."""
    if anthropic:
        return b"\n\nevent: error\ndata: " + error_body(error, anthropic=True) + b"\n\n"
    inner = {"message": error.message, "type": error.type, "param": None, "code": error.status}
    return b"\n\ndata: " + _dump({"error": inner}) + b"\n\n"


def error_headers(error: SidecarError, content: bytes) -> list[tuple[bytes, bytes]]:
    """The headers of an error answer that the sidecar makes."""
    return [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(content)),
        (b"x-sidecar-error", b"%d" % error.status),
    ]


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    403: "permission_error",
    413: "request_too_large",
    415: "invalid_request_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
