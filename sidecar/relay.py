"""Passes an engine's answer to the client as it comes: the byte relay.

Rule: acts. A piece of a body leaves in the loop turn in which it came. Status, headers, bytes and framing are
the engine's own; only a usage that must tell the prefiller's count is rewritten, and only then the length
goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import httpx

from sidecar import headers as names
from sidecar.headers import Headers
from sidecar.observers import LegRecord
from sidecar.plan import Reply
from sidecar.transport import BodyStream, raw_headers
from sidecar.usage import SseUsage, rewritten

if TYPE_CHECKING:
    from sidecar.server.client import Client

SSE = b"text/event-stream"
JSON = b"application/json"


class Relay:
    """Relays one answer. Use it once: `await Relay(client, record).run(response, cached_tokens)`."""

    __slots__ = ("_client", "_record", "appendable")

    def __init__(self, client: Client, record: LegRecord) -> None:
        # Whether an event of ours can end the body: an SSE stream, not compressed, of no announced length.
        self.appendable = False
        self._client = client
        self._record = record

    async def run(self, response: httpx.Response, cached_tokens: int | None) -> None:
        """Relay the whole answer; a body that ends early raises httpx's error with the head already sent.

        cached_tokens: the count to put into the usage of a 2xx answer, or None to change nothing.
        """
        headers = names.relayed(raw_headers(response))
        said = names.by_name(headers)
        kind = said.get(names.CONTENT_TYPE, b"").partition(b";")[0].strip().lower()
        plain = not said.get(names.CONTENT_ENCODING)
        length = _length(said)
        self.appendable = kind == SSE and plain and length is None
        exchange = self._record.exchange
        exchange.streaming, exchange.status = kind == SSE, response.status_code
        try:
            if cached_tokens is None or not response.is_success or not plain or kind not in (SSE, JSON):
                await self._verbatim(response, headers, length)
            elif kind == SSE:
                await self._events(response, names.without(headers, names.CONTENT_LENGTH), cached_tokens)
            else:
                await self._document(response, headers, length, cached_tokens)
        finally:
            self._note_sent()

    def reply(self, reply: Reply) -> None:
        """Relay an answer that has been read whole: a prefiller's refusal."""
        self._record.exchange.status = reply.status
        length = _length(names.by_name(reply.headers))
        self._client.start(reply.status, reply.headers, reason=reply.reason, body_length=length)
        self._client.write(reply.content)
        self._note_sent()
        self._client.finish()

    async def _verbatim(self, response: httpx.Response, headers: Headers, length: int | None) -> None:
        self._start_as(response, headers, length)
        await self._pour(response, self._client.write)
        self._client.finish(getattr(response.stream, "trailers", ()))

    async def _events(self, response: httpx.Response, headers: Headers, cached_tokens: int) -> None:
        api = self._record.exchange.api
        assert api is not None
        usage = SseUsage(api, cached_tokens)
        self.appendable = True
        self._start_as(response, headers, None)
        write = self._client.write
        await self._pour(response, lambda piece: write(usage.feed(piece)))
        write(usage.rest())
        self._client.finish(getattr(response.stream, "trailers", ()))

    async def _document(
        self, response: httpx.Response, headers: Headers, length: int | None, cached_tokens: int
    ) -> None:
        api = self._record.exchange.api
        assert api is not None
        pieces: list[bytes] = []
        await self._pour(response, pieces.append)
        content = rewritten(b"".join(pieces), api, cached_tokens)
        if length is not None:
            length = len(content)
            headers = names.replaced(headers, names.CONTENT_LENGTH, b"%d" % length)
        self._start_as(response, headers, length)
        self._client.write(content)
        self._client.finish()

    async def _pour(self, response: httpx.Response, write: Callable[[bytes], None]) -> None:
        """Give each piece of the body to `write`; a slow client pauses the engine."""
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
        reason = response.extensions.get("reason_phrase", b"")
        self._client.start(response.status_code, headers, reason=reason, body_length=length)

    def _note_sent(self) -> None:
        record, client = self._record, self._client
        record.exchange.first_byte_s = record.first_byte_s = client.first_byte_s
        record.exchange.sent_bytes = client.sent_bytes


def _length(said: Mapping[bytes, bytes]) -> int | None:
    """The announced length in bytes; None when the body tells its end itself."""
    length = said.get(names.CONTENT_LENGTH)
    return None if length is None else int(length)
