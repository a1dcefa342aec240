"""Reads one response: what llhttp calls back, judged.

Rule: decides only; the socket is connection.py's. Whatever leaves the end of the message in doubt (RFC 9112
6.3) is an error, never a guess. One Answer and one fresh parser per response, because llhttp keeps state
between messages and does not know that a request was HEAD.
"""

import asyncio
from collections.abc import Callable

import httpx
from httptools import HttpParserCallbackError, HttpResponseParser

_VERSIONS = {"1.1": b"HTTP/1.1", "1.0": b"HTTP/1.0"}
# RFC 9110 6.4.1: these have no content whatever their header fields say.
_BODILESS_STATUSES = frozenset((204, 304))
_CONTENT_LENGTH = b"content-length"
_TRANSFER_ENCODING = b"transfer-encoding"


class _ExcessBytesError(Exception):
    """Stops the parser when another message begins after a complete one."""


def _discard(piece: bytes) -> None:
    """Where body pieces go after the answer is settled."""


class Answer:
    """One response while it is read.

    waiter      the future that the one waiting coroutine sleeps on: first for the head, later for the body
    feed        gives received bytes to the parser
    pieces      the body bytes of the last feed; whoever fed takes them out
    write       where body bytes go
    status      0 until the final head is complete
    quiet_bytes received since the last body byte: bounds head, trailers and chunk extensions alike
    complete    the whole message is here; settled: nothing more comes, and fault says why if it was cut short
    died        the connection went away under it, which alone is worth a retry
    """

    __slots__ = (
        "_fields",
        "_max_head_bytes",
        "_parser",
        "_to_head",
        "_until_close",
        "complete",
        "continued",
        "died",
        "fault",
        "feed",
        "headers",
        "keep_alive",
        "on_body",
        "pieces",
        "quiet_bytes",
        "reason",
        "settled",
        "status",
        "trailers",
        "version",
        "waiter",
        "write",
    )

    def __init__(self, waiter: asyncio.Future[None], max_head_bytes: int, *, to_head: bool) -> None:
        self.waiter = waiter
        self.continued: asyncio.Future[None] | None = None
        self._max_head_bytes = max_head_bytes
        self._to_head = to_head
        self._until_close = False
        self._fields: list[tuple[bytes, bytes]] = []
        self.headers: list[tuple[bytes, bytes]] = []
        self.trailers: list[tuple[bytes, bytes]] = []
        self.status = 0
        self.reason = b""
        self.version = b""
        self.quiet_bytes = 0
        self.keep_alive = self.complete = self.settled = self.died = False
        self.fault: BaseException | None = None
        self.write: Callable[[bytes], object] = _discard
        self.pieces: list[bytes] = []
        # What the parser calls for each chunk: a list's own method costs a tenth of one of ours.
        self.on_body: Callable[[bytes], None] = self.pieces.append
        self._parser = HttpResponseParser(self)
        self.feed: Callable[[bytes], None] = self._parser.feed_data

    @property
    def started(self) -> bool:
        """Whether any byte of it has come."""
        return self.status > 0 or self.quiet_bytes > 0

    def wake(self) -> None:
        """Wake whoever waits for the head or for more of the body."""
        if not self.waiter.done():
            self.waiter.set_result(None)

    def settle(self, fault: BaseException | None) -> None:
        """Nothing more is read. Unties the parser, so that no reference cycle is left for the collector."""
        self.fault = fault
        self.settled = True
        self.write = _discard
        del self.feed, self._parser
        self.wake()

    def end_of_input(self) -> httpx.RemoteProtocolError | None:
        """The engine closed its side: the end of a close-delimited body, else the error that it is."""
        if self.complete:
            return None
        if not self.started:
            return httpx.RemoteProtocolError("the engine closed the connection before it answered")
        if not self.status:
            return httpx.RemoteProtocolError("the engine closed the connection within the response head")
        if not self._until_close:
            return httpx.RemoteProtocolError("the engine closed the connection before the end of the body")
        self.complete = True
        return None

    def over_limit(self) -> httpx.RemoteProtocolError:
        """What to fail with when quiet_bytes is over the limit."""
        where = "response head" if not self.status else "framing between body bytes"
        return httpx.RemoteProtocolError(f"{where} over {self._max_head_bytes} bytes")

    # What follows is called by the parser, inside feed.

    def on_message_begin(self) -> None:
        if self.complete:
            raise _ExcessBytesError

    def on_status(self, part: bytes) -> None:
        self.reason += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        status = parser.get_status_code()
        if status < 200:
            self._interim(status)
            return
        version = _VERSIONS.get(parser.get_http_version())
        if version is None:
            raise httpx.RemoteProtocolError(f"HTTP version {parser.get_http_version()} in the answer")
        if self.quiet_bytes > self._max_head_bytes and self._head_bytes() > self._max_head_bytes:
            raise self.over_limit()
        self.keep_alive = parser.should_keep_alive()
        self._judge_framing(status, version)
        self.headers, self._fields = self._fields, self.trailers
        self.version, self.status, self.quiet_bytes = version, status, 0
        if self._to_head:
            self.complete = True
            self.write = self._excess
        self.wake()

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True

    def _interim(self, status: int) -> None:
        if status == 101 or status < 100:
            raise httpx.RemoteProtocolError(f"status {status} in the answer")
        # RFC 9110 8.6 and RFC 9112 6.1 forbid both here; llhttp would take what follows for a body. An empty
        # one changes nothing.
        for name, value in self._fields:
            if name.lower() in (_CONTENT_LENGTH, _TRANSFER_ENCODING) and value.strip() != b"0":
                raise httpx.RemoteProtocolError(f"a body announced by status {status}")
        self._fields, self.reason = [], b""
        if status == 100 and self.continued is not None and not self.continued.done():
            self.continued.set_result(None)

    def _head_bytes(self) -> int:
        # Each line is "name: value CRLF".
        return len(self.reason) + sum(len(name) + len(value) + 4 for name, value in self._fields)

    def _judge_framing(self, status: int, version: bytes) -> None:
        """llhttp has refused both framings together and doubled or bad lengths; codings are left to us.

        It would hand out the bytes of any coding other than chunked undecoded, and without its header field
        they would be corrupt. Go's net/http (transfer.go, parseTransferEncoding) refuses them likewise.
        """
        lengths = codings = 0
        for name, value in self._fields:
            if len(name) == 14 and name.lower() == _CONTENT_LENGTH:
                lengths += 1
            elif len(name) == 17 and name.lower() == _TRANSFER_ENCODING:
                codings += 1
                if value.strip().lower() != b"chunked" or codings > 1:
                    raise httpx.RemoteProtocolError(f"transfer coding {value!r} in the answer")
        bodiless = self._to_head or status in _BODILESS_STATUSES
        self._until_close = not (lengths or codings or bodiless)
        # RFC 9112 6.1: chunked from HTTP/1.0 is faulty framing: close after it. After a HEAD, llhttp reads on
        # as if chunks followed and cannot be asked whether anything did.
        if codings and (self._to_head or version == b"HTTP/1.0"):
            self.keep_alive = False

    def _excess(self, piece: bytes) -> None:
        self.keep_alive = False


def fault_of(error: Exception) -> BaseException:
    """The error to report for what feed raised: ours from inside a callback, or bad bytes from the engine."""
    inner = error.__context__ if isinstance(error, HttpParserCallbackError) else None
    return inner or httpx.RemoteProtocolError(f"the engine's answer is not HTTP/1.1: {error}")
