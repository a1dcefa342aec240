"""Passes an engine's answer to the client as it comes: the byte relay.

Rule: acts. A piece of a body leaves in the loop turn in which it came. Status, headers, bytes and framing are
the engine's own; only a usage that must tell the prefiller's count is rewritten, and only then the length
goes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import httpx

from sidecar import headers as names
from sidecar.headers import Headers
from sidecar.observers import ExchangeRecord, LegRecord
from sidecar.plan import Reply
from sidecar.transport import BodyStream, raw_headers
from sidecar.usage import SseUsage, reported, rewritten

if TYPE_CHECKING:
    from sidecar.server.client import Client

# The usage stands in the last part of a document, before the KV parameters and log probabilities at most; in
# a stream in the last event but for `[DONE]`, or in the first, each mostly a piece of its own.
_USAGE_BYTES = 4096
_USAGE_PIECES = 8

Write = Callable[[bytes], None]


class Relay:
    """Gives the client its one answer: an engine's (`run`, `reply`), or one of a plan's making (`emit`)."""

    __slots__ = ("_client", "_first", "_last", "_record", "_tap", "appendable")

    def __init__(self, client: Client, record: ExchangeRecord) -> None:
        # Whether an event of ours can end the body: an SSE stream, not compressed, of no announced length.
        self.appendable = False
        self._client = client
        self._record = record
        self._tap: Write | None = None
        # Of a pull's stream the beginning, while it is short, and the last pieces.
        self._first: list[bytes] = []
        self._last: deque[bytes] = deque(maxlen=_USAGE_PIECES)

    async def run(
        self, response: httpx.Response, leg: LegRecord, cached_tokens: int | None, tap: Write | None = None
    ) -> None:
        """Relay a leg's whole answer; one that ends early raises httpx's error with the head already sent.

        cached_tokens: the count to put into the usage of a 2xx answer, or None to change nothing.
        tap: is given each piece of the engine's body after it has been written.
        """
        self._tap = tap
        headers = names.relayed(raw_headers(response))
        said = names.by_name(headers)
        kind = names.media_type(said.get(names.CONTENT_TYPE, b""))
        plain = not said.get(names.CONTENT_ENCODING)
        self._record.streaming = kind == names.SSE
        length = _length(said)
        self.appendable = kind == names.SSE and plain and length is None
        tokens = cached_tokens if cached_tokens is not None and response.is_success and plain else None
        try:
            if tokens is not None and kind == names.SSE:
                await self._events(response, names.without(headers, names.CONTENT_LENGTH), tokens)
            elif tokens is not None and kind == names.JSON:
                await self._document(response, headers, length, tokens)
            else:
                self._start_as(response, headers, length)
                await self._pour(response, self._client.write if leg.leg.pull is None else self._noting(leg))
                self._client.finish(getattr(response.stream, "trailers", ()))
        finally:
            self._note_sent(leg)

    def reply(self, reply: Reply) -> None:
        """Give an answer that is whole: a prefiller's refusal, or one that a plan has composed."""
        self._start(reply.status, reply.reason, reply.headers, _length(names.by_name(reply.headers)))
        self._client.write(reply.content)
        self._note_sent()
        self._client.finish()

    def emit(self, headers: Headers, content: bytes) -> None:
        """Give a piece of an answer that a plan composes."""
        if not self._client.started:
            self.appendable = names.is_kind(names.SSE, headers)
            self._record.streaming = self.appendable
            self._start(200, b"OK", headers, None)
        self._client.write(content)
        self._note_sent()

    def finish(self, reply: Reply | None) -> None:
        """End a composed answer: with this whole one, or after what was emitted."""
        if reply is None:
            self._client.finish()
        else:
            self.reply(reply)

    def _noting(self, leg: LegRecord) -> Write:
        """Write, and afterwards note when a pull's answer began, and the usage that it reports."""
        client, tail = self._client, b""

        def write(piece: bytes) -> None:
            nonlocal tail
            client.write(piece)
            leg.first_byte_s = client.first_byte_s
            tail = (tail + piece)[-_USAGE_BYTES:] if tail else piece[-_USAGE_BYTES:]
            _note_usage(leg, tail)

        return self._noting_events(leg) if self._record.streaming else write

    def _noting_events(self, leg: LegRecord) -> Write:
        """The same for a stream, whose usage is looked for at its two ends only: many events make one."""
        client, first, last = self._client, self._first, self._last
        beginning = True

        def write(piece: bytes) -> None:
            nonlocal beginning
            client.write(piece)
            if beginning:
                beginning = _begun(leg, first, piece)
                leg.first_byte_s = client.first_byte_s
            if len(piece) > _USAGE_BYTES:
                last.clear()  # nothing else may seem to stand before what is kept of it
                piece = piece[-_USAGE_BYTES:]
            last.append(piece)

        return write

    async def _events(self, response: httpx.Response, headers: Headers, cached_tokens: int) -> None:
        api = self._record.api
        assert api is not None
        usage = SseUsage(api, cached_tokens)
        self.appendable = True
        self._start_as(response, headers, None)
        write = self._client.write
        try:
            await self._pour(response, lambda piece: write(usage.feed(piece)))
        except httpx.HTTPError:
            if self._client.first_byte_s is not None:  # else there can be a whole error answer
                write(usage.rest())
            raise
        write(usage.rest())
        self._client.finish(getattr(response.stream, "trailers", ()))

    async def _document(
        self, response: httpx.Response, headers: Headers, length: int | None, cached_tokens: int
    ) -> None:
        api = self._record.api
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
        self._start(response.status_code, response.extensions.get("reason_phrase", b""), headers, length)

    def _start(self, status: int, reason: bytes, headers: Headers, length: int | None) -> None:
        self._record.status = status
        self._client.start(status, headers, reason=reason, body_length=length)

    def _note_sent(self, leg: LegRecord | None = None) -> None:
        record, client = self._record, self._client
        record.first_byte_s = client.first_byte_s
        record.sent_bytes, record.writes = client.sent_bytes, client.writes
        if leg is not None:
            leg.first_byte_s = client.first_byte_s
            for end in (self._first, self._last):
                if end:
                    _note_usage(leg, b"".join(end))


def _begun(leg: LegRecord, first: list[bytes], piece: bytes) -> bool:
    """Take a piece of a stream's beginning, and say whether the next one is of it too.

    Its usage is looked for in the first piece, which mostly has all of it, and once all of the beginning
    came.
    """
    if not first:
        _note_usage(leg, piece[:_USAGE_BYTES])
    first.append(piece[:_USAGE_BYTES])
    text = b"".join(first)
    if len(text) < _USAGE_BYTES:
        first[:] = (text,)
        return True
    first.clear()
    _note_usage(leg, text[:_USAGE_BYTES])
    return False


def _note_usage(leg: LegRecord, text: bytes) -> None:
    prompt, cached = reported(text)
    leg.prompt_tokens = leg.prompt_tokens if prompt is None else prompt
    leg.cached_tokens = leg.cached_tokens if cached is None else cached


def _beside(write: Write, tap: Write) -> Write:
    def both(piece: bytes) -> None:
        write(piece)
        tap(piece)

    return both


def _length(said: Mapping[bytes, bytes]) -> int | None:
    """The announced length in bytes; None when the body tells its end itself."""
    length = said.get(names.CONTENT_LENGTH)
    return None if length is None else int(length)
