"""Passes an engine's answer to the client as it comes: the byte relay.

Rule: acts. A piece of a body leaves in the loop turn in which it came. Status, headers, bytes and framing are
the engine's own; only a usage that must tell the prefiller's count is rewritten, and only then the length
goes.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

import httpx

from sidecar import headers as names
from sidecar.headers import Headers
from sidecar.observers import ExchangeRecord, LegRecord
from sidecar.plan import Reply
from sidecar.transport import BodyStream, raw_headers
from sidecar.usage import SseUsage, rewritten

if TYPE_CHECKING:
    from sidecar.server.client import Client


Write = Callable[[bytes], None]


class Relay:
    """Gives the client its one answer: an engine's (`run`, `reply`), or one of a plan's making (`emit`)."""

    __slots__ = ("_client", "_leg", "_record", "_tap", "appendable")

    def __init__(self, client: Client, record: ExchangeRecord) -> None:
        # Whether an event of ours can end the body: an SSE stream, not compressed, of no announced length.
        self.appendable = False
        self._client = client
        self._record = record
        self._leg: LegRecord | None = None
        self._tap: Write | None = None

    async def run(
        self, response: httpx.Response, leg: LegRecord, cached_tokens: int | None, tap: Write | None = None
    ) -> None:
        """Relay a leg's whole answer; one that ends early raises httpx's error with the head already sent.

        cached_tokens: the count to put into the usage of a 2xx answer, or None to change nothing.
        tap: is given each piece of the engine's body after it has been written.
        """
        self._leg, self._tap = leg, tap
        headers = names.relayed(raw_headers(response))
        self._record.streaming = names.is_kind(names.SSE, headers)
        if cached_tokens is None or not response.is_success or names.first(headers, names.CONTENT_ENCODING):
            await self._verbatim(response, headers)
        elif self._record.streaming:
            await self._events(response, names.without(headers, names.CONTENT_LENGTH), cached_tokens)
        elif names.is_kind(names.JSON, headers):
            await self._document(response, headers, cached_tokens)
        else:
            await self._verbatim(response, headers)

    def reply(self, reply: Reply) -> None:
        """Give an answer that is whole: a prefiller's refusal, or one that a plan has composed."""
        self._start(reply.status, reply.reason, reply.headers, _length(reply.headers))
        self._write(reply.content)
        self._client.finish()

    def emit(self, headers: Headers, content: bytes) -> None:
        """Give a piece of an answer that a plan composes."""
        if not self._client.started:
            self._record.streaming = self.appendable = names.is_kind(names.SSE, headers)
            self._start(200, b"OK", headers, None)
        self._write(content)

    def finish(self, reply: Reply | None) -> None:
        """End a composed answer: with this whole one, or after what was emitted."""
        if reply is None:
            self._client.finish()
        else:
            self.reply(reply)

    async def _verbatim(self, response: httpx.Response, headers: Headers) -> None:
        self._start_as(response, headers, _length(headers))
        await self._pour(response, self._write)
        self._client.finish(getattr(response.stream, "trailers", ()))

    async def _events(self, response: httpx.Response, headers: Headers, cached_tokens: int) -> None:
        api = self._record.api
        assert api is not None
        usage = SseUsage(api, cached_tokens)
        self._start_as(response, headers, None)
        await self._pour(response, lambda piece: self._write(usage.feed(piece)))
        self._write(usage.rest())
        self._client.finish(getattr(response.stream, "trailers", ()))

    async def _document(self, response: httpx.Response, headers: Headers, cached_tokens: int) -> None:
        api = self._record.api
        assert api is not None
        pieces: list[bytes] = []
        await self._pour(response, pieces.append)
        content = rewritten(b"".join(pieces), api, cached_tokens)
        if _length(headers) is not None:
            headers = names.replaced(headers, names.CONTENT_LENGTH, b"%d" % len(content))
        self._start_as(response, headers, _length(headers))
        self._write(content)
        self._client.finish()

    async def _pour(self, response: httpx.Response, write: Write) -> None:
        """Give each piece of the body to `write`; a slow client pauses the engine."""
        if self._tap is not None:
            write = _beside(write, self._tap)
        stream = response.stream
        if isinstance(stream, BodyStream):
            self._client.source = stream
            try:
                await stream.relay(write)
            finally:
                self._client.source = None
            return
        async for piece in stream:  # type: ignore[union-attr]  # any other httpx transport
            write(piece)
            await self._client.drain()

    def _start_as(self, response: httpx.Response, headers: Headers, length: int | None) -> None:
        plain = not names.first(headers, names.CONTENT_ENCODING)
        self.appendable = self._record.streaming and plain and length is None
        self._start(response.status_code, response.extensions.get("reason_phrase", b""), headers, length)

    def _start(self, status: int, reason: bytes, headers: Headers, length: int | None) -> None:
        self._record.status = status
        self._client.start(status, headers, reason=reason, body_length=length)

    def _write(self, piece: bytes) -> None:
        if not piece:
            return
        record = self._record
        if record.first_byte_s is None:
            record.first_byte_s = monotonic()
            if self._leg is not None:
                self._leg.first_byte_s = record.first_byte_s
        record.sent_bytes += len(piece)
        self._client.write(piece)


def _beside(write: Write, tap: Write) -> Write:
    def both(piece: bytes) -> None:
        write(piece)
        tap(piece)

    return both


def _length(headers: Headers) -> int | None:
    """The announced length in bytes; None when the body tells its end itself."""
    length = names.first(headers, names.CONTENT_LENGTH)
    return None if length is None else int(length)
