"""One request as it comes in: the admitted head and the body behind it.

Rule: the client's bytes are shown as sent; nothing is answered here but the invitation to send the body.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Protocol

from sidecar.server.admission import Head, Headers
from sidecar.server.inbound import RequestBody, Valve


class Inlet(Valve, Protocol):
    """What a request needs of the connection it comes in on."""

    transport: asyncio.Transport
    peer: tuple[str, int] | None


class Source(Protocol):
    """Where an answer comes from; stopped while the client is slow (both calls idempotent)."""

    def pause(self) -> None:
        """Stop bringing bytes."""

    def resume(self) -> None:
        """Bring bytes again."""


class Request:
    """One request; `method`, `target` (origin form, with the query) and `headers` are the client's bytes.

    `received_at_s` is time.monotonic() at the head's end; `tunnel_requested` says that it is a WebSocket
    handshake; `asked` is the head as it was admitted; `body_bytes`: of the body, once it
    was read whole.
    """

    __slots__ = (
        "_expects_continue",
        "_transport",
        "asked",
        "body",
        "body_bytes",
        "has_body",
        "headers",
        "http_version",
        "method",
        "peer",
        "received_at_s",
        "target",
        "tunnel_requested",
    )

    def __init__(self, inlet: Inlet, head: Head) -> None:
        self._transport = inlet.transport
        self.peer = inlet.peer
        self.asked = head
        self.method = head.method
        self.target = head.target
        self.http_version = head.http_version
        self.headers: Headers = head.headers
        self.tunnel_requested = head.wants_tunnel
        self._expects_continue = head.expects_continue
        self.has_body = head.body_length != 0
        self.body = RequestBody(inlet, head.body_length) if self.has_body else None
        self.body_bytes = 0
        self.received_at_s = time.monotonic()

    @property
    def path(self) -> bytes:
        """The target without its query, which may hold secrets."""
        return self.target.partition(b"?")[0]

    @property
    def received(self) -> bool:
        """Whether the whole request, body included, has arrived."""
        return self.body is None or self.body.complete

    async def read_body(self, limit_bytes: int) -> bytes | bytearray:
        """The whole body. Raises ClientGone; BodyTooLarge and BodyStalled, which can still be answered."""
        body = self.body
        if body is None:
            return b""
        if body.length_bytes <= limit_bytes:
            self._invite_body()
        whole = await body.read(limit_bytes)
        self.body_bytes = len(whole)
        return whole

    async def stream_body(self) -> AsyncIterator[bytes]:
        """The body in pieces as they arrive; the client is not read while they wait."""
        while piece := await self.next_piece():
            yield piece

    async def next_piece(self) -> bytes:
        """All of the body that came and was not taken; b"" at its end. Raises BodyStalled, ClientGone."""
        if self.body is None:
            return b""
        self._invite_body()
        return await self.body.next_piece()

    def _invite_body(self) -> None:
        """Send `100 Continue` if the client waits for it (RFC 9110 10.1.1)."""
        if self._expects_continue:
            self._expects_continue = False
            if self.body is not None and self.body.untouched:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
