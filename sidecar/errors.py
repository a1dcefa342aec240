"""The one tree of failures (contract section 9); `problem` has what each looks like to a client.

Rule: pure. Each class carries its status, and whether sending the leg again can help.
Engines' own error answers are not here: they pass through unchanged as replies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from sidecar import problem

if TYPE_CHECKING:
    from sidecar.endpoint import Endpoint
    from sidecar.plan import Leg, Reply


class SidecarError(Exception):
    """A request that the sidecar answers itself. The message is for the client and repeats no body."""

    status: ClassVar[int] = 500

    @property
    def type(self) -> str:
        """The error's `type` on the wire."""
        return problem.kind(self.status)

    @property
    def label(self) -> str:
        """How spans, logs and metrics call it."""
        return self.type

    @property
    def message(self) -> str:
        """What the client reads."""
        return str(self) or "internal error in the routing sidecar"

    def answer(self, *, anthropic: bool) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """The headers and the body of the answer."""
        content = problem.body(self.status, self.message, anthropic=anthropic)
        return problem.headers(self.status, content), content

    def event(self, *, anthropic: bool) -> bytes:
        """The event that ends a stream which has begun."""
        return problem.sse_event(self.status, self.message, anthropic=anthropic)


class BadRequest(SidecarError):
    """The client's request cannot be routed as it is; the message names the field or header."""

    status = 400


class TargetDenied(SidecarError):
    """The prefiller that a request names is not allowed (SSRF protection): the peer's words, as text."""

    status = 403

    def __init__(self, target: Endpoint) -> None:
        super().__init__("Forbidden: prefill target not allowed by SSRF protection")
        self.target = target

    @property
    def label(self) -> str:
        """The peer's."""
        return "ssrf_protection_denied"

    def answer(self, *, anthropic: bool) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """The same for every API."""
        content = self.message.encode()
        return problem.text_headers(self.status, content), content


class RequestTooLarge(SidecarError):
    """A body that must be read is over `--max-request-bytes`."""

    status = 413


class RequestTimeout(SidecarError):
    """The client has been silent for too long in the middle of its body."""

    status = 408


class UnsupportedEncoding(SidecarError):
    """A body that must be read has a `Content-Encoding` that the sidecar cannot decode."""

    status = 415


class OutOfMemory(SidecarError):
    """There is no memory for this request; smaller ones may well be served (503)."""

    status = 503


class AtCapacity(SidecarError):
    """As many requests run as may at a time; another sidecar, or a moment later, may do."""

    status = 503

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} requests run, and no more may at a time (--max-concurrent-requests)")

    def answer(self, *, anthropic: bool) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """With Retry-After: a second, in which a gateway finds another pod or a short answer ends."""
        headers, content = super().answer(anthropic=anthropic)
        return [*headers, (b"retry-after", b"1")], content


class ShuttingDown(SidecarError):
    """The grace of a shutdown ran out before the answer was complete."""

    status = 503


class LegFailed(SidecarError):
    """A leg got no usable answer. Thrown into the plan at its `yield`.

    label: how spans, logs and metrics call it. retryable: sending the same leg again can help.
    """

    status = 502
    label: ClassVar[str] = "failed"
    # What the client reads when nothing more special is known; `leg` is the leg that failed.
    sentence: ClassVar[str] = "the {leg.role} engine gave no usable answer"

    def __init__(self, leg: Leg, message: str | None = None) -> None:
        super().__init__(message or self.sentence.format(leg=leg))
        self.leg = leg

    @property
    def retryable(self) -> bool:
        """Whether the request surely ran nowhere, so that it may be sent again (contract section 5)."""
        return False


class LegRefused(LegFailed):
    """The engine answered with a status other than 2xx: `reply`, relayed verbatim or in an event."""

    label = "refused"

    def __init__(self, leg: Leg, reply: Reply) -> None:
        super().__init__(leg, f"the {leg.role} engine answered {reply.status}")
        self.reply = reply

    def event(self, *, anthropic: bool) -> bytes:
        """With the engine's status and words. Those are for the client alone: they may repeat its prompt."""
        message, kind = problem.told(self.reply.content)
        said = f"{self.message}: {message}" if message else self.message
        return problem.sse_event(self.reply.status, said, anthropic=anthropic, own_kind=kind)

    @property
    def retryable(self) -> bool:
        """Only gateway statuses say that nothing ran."""
        return self.reply.status in (502, 503, 504)


class EngineUnreachable(LegFailed):
    """No connection to the engine: refused, no route, name unknown, or the connect timeout ran out."""

    sentence = "the {leg.role} engine at {leg.target.netloc} cannot be reached"
    label = "unreachable"

    @property
    def retryable(self) -> bool:
        """Nothing was sent."""
        return True


class EngineNotReady(EngineUnreachable):
    """The local engine refuses connections: it is starting, or it is down (503)."""

    sentence = "the {leg.role} engine is not ready: it refuses connections"
    status = 503


class EngineConnectTimeout(EngineUnreachable):
    """The connect timeout ran out (504)."""

    sentence = "the {leg.role} engine did not accept a connection in time"
    status = 504


class EngineUntrusted(EngineUnreachable):
    """It accepts connections, but no TLS session comes about: its certificate, or it speaks no TLS."""

    sentence = "no TLS session with the {leg.role} engine at {leg.target.netloc}"
    label = "tls"


class NoResources(EngineUnreachable):
    """Not the engine's fault: no descriptor or memory is left here to open a connection with (503)."""

    sentence = "the sidecar has too many open files, or no memory, to connect to the {leg.role} engine"
    label = "no_resources"
    status = 503


class EngineSilent(LegFailed):
    """The leg's own time limit ran out before its whole answer had come (504)."""

    sentence = "the {leg.role} engine did not answer within {leg.timeout_s:g} s"
    label = "timeout"
    status = 504


class EngineDied(LegFailed):
    """The connection ended before the whole answer had come."""

    sentence = "the {leg.role} engine ended the connection before its answer was complete"
    label = "died"


class UnusableAnswer(LegFailed):
    """A 2xx answer that the plan needs to read is not the JSON object that it must be."""

    label = "unusable"
