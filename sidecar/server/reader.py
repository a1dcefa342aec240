"""Turns a client's bytes into admitted requests, one httptools parser per connection.

Rule: whatever cannot be read in exactly one way is a Refusal; after one, nothing more is parsed.
"""

from typing import Protocol

import httptools

from sidecar.server.admission import CHUNKED, Head, Refusal, admit, head_bytes
from sidecar.server.inbound import RequestBody


class Arrival(Protocol):
    """Who is told about a request when its head is complete, and gives the place for its body, if any."""

    def request_arrived(self, head: Head, *, keep_alive: bool) -> RequestBody | None:
        """Take an admitted request."""


class RequestReader:
    """Parses one connection's bytes; `in_head` says that a request's head has begun and not ended.

    The parser shows nothing of a field, a chunk extension or a trailer before its end: `_silent_bytes` counts
    what went in since a head, a piece of a body or a message ended, so that none can grow without bound.
    """

    __slots__ = (
        "_arrival",
        "_body",
        "_head",
        "_headers",
        "_most_bytes",
        "_parser",
        "_resuming",
        "_silent_bytes",
        "_target",
        "in_head",
    )

    def __init__(self, arrival: Arrival, head_bytes: int) -> None:
        self._most_bytes = head_bytes
        self._arrival = arrival
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head: Head | None = None
        self._body: RequestBody | None = None
        self._silent_bytes = 0
        self._resuming = False
        self.in_head = False

    def feed(self, chunk: bytes) -> bytes:
        """Parse `chunk`; returns what follows a tunnel's head, unread, otherwise b"". Raises Refusal."""
        if self._body is not None and self._body.filled:
            # Its rest came past the parser, which still waits for it: a fresh one reads what follows.
            self._parser, self._body, self._silent_bytes = httptools.HttpRequestParser(self), None, 0
        self._silent_bytes += len(chunk)
        rest: bytes | memoryview = chunk
        while rest:
            offset = self._parse(rest)
            if offset < 0:
                break
            # A view, since a chunk full of upgrades would otherwise be copied once per request.
            rest = memoryview(rest)[offset:]
            if self._head is not None and self._head.wants_tunnel:
                return bytes(rest)
            self._parse_on()
        if self._silent_bytes > self._most_bytes:
            what = "request head, chunk extension or trailers"
            raise Refusal(431, f"{what} over {self._most_bytes} bytes (--max-header-bytes)")
        return b""

    def close(self) -> None:
        """Let go of the parser, whose callbacks keep this reader and its connection alive in a cycle."""
        self._parser = httptools.HttpRequestParser(object())

    def _parse(self, chunk: bytes | memoryview) -> int:
        """Feed the parser; the offset after an upgrade's head, or -1 when all of it was read."""
        try:
            self._parser.feed_data(chunk)
        except httptools.HttpParserUpgrade as upgrade:
            offset: int = upgrade.args[0]
            return offset
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except httptools.HttpParserError as error:
            raise Refusal(400, f"malformed request: {error}") from None
        return -1

    def _parse_on(self) -> None:
        """Go on after an upgrade that is ignored (RFC 9110 7.8), whose body llhttp would skip.

        A fresh parser is given a head of the same framing, so that the body is read by the same rules.
        """
        self._parser = httptools.HttpRequestParser(self)
        if self._head is not None and self._body is not None:
            length = self._head.body_length
            framing = b"transfer-encoding: chunked" if length == CHUNKED else b"content-length: %d" % length
            self._resuming = True
            self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
            self._resuming = False

    # The parser's callbacks.

    def on_message_begin(self) -> None:
        """A request line has begun."""
        if not self._resuming:
            self._target, self._headers, self.in_head = b"", [], True

    def on_url(self, piece: bytes) -> None:
        """A piece of the request target."""
        self._target += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        """A whole field; those after the head are trailers, which are dropped (RFC 9110 6.5.1)."""
        if self.in_head:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole: judge it and hand it over."""
        if self._resuming:
            return
        parser, target, headers = self._parser, self._target, self._headers
        self.in_head = False
        # The chunk it ended in may hold more than the head: only then is it counted field by field.
        most_bytes = self._most_bytes
        if self._silent_bytes > most_bytes and head_bytes(target, headers) > most_bytes:
            raise Refusal(431, f"request head over {most_bytes} bytes (--max-header-bytes)")
        self._silent_bytes = 0
        self._head = head = admit(
            parser.get_method(), target, parser.get_http_version(), headers, upgrade=parser.should_upgrade()
        )
        # HTTP/1.0 connections are not kept: their keep-alive needs an answer's length to be known.
        keep_alive = head.http_version == "1.1" and parser.should_keep_alive() and not head.wants_tunnel
        self._body = self._arrival.request_arrived(head, keep_alive=keep_alive)

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._silent_bytes = 0
        if self._body is not None:
            self._body.feed(piece)

    def on_message_complete(self) -> None:
        """The request is whole, unless llhttp skips its body as that of an upgrade."""
        self._silent_bytes = 0
        if self._body is not None and not self._parser.should_upgrade():
            self._body.end()
