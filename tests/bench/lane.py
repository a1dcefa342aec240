"""One connection of the load: sends a request, finds where the answer ends, and judges it.

Rule: what is done per event is one read and one look at its last bytes; the whole answer is checked at once
when it has ended.
"""

from __future__ import annotations

import re
import socket
from time import monotonic

import httptools

_CONNECT_S = 5.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_LAST_CHUNK = b"0\r\n\r\n"


class Lane:
    """A connection with one request at a time; the first is ready to be pushed when it is made.

    first_s: from asking to the first byte of the answer's body. Making one raises OSError.
    """

    __slots__ = (
        "_asked_s",
        "_head",
        "_in_body",
        "_left_bytes",
        "_pieces",
        "_request",
        "_sent",
        "first_s",
        "sock",
    )

    def __init__(self, port: int, request: bytes) -> None:
        self._request = memoryview(request)
        self.sock = socket.create_connection(("127.0.0.1", port), _CONNECT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.ask()

    @property
    def fd(self) -> int:
        """The socket's number."""
        return self.sock.fileno()

    def ask(self) -> None:
        """Begin the next request."""
        self._head = b""
        self._pieces: list[bytes] = []
        self._left_bytes: int | None = None
        self._in_body = False
        self._sent = 0
        self.first_s = 0.0
        self._asked_s = monotonic()

    def push(self) -> bool:
        """Send what the socket takes; whether the request has been sent whole. Raises OSError."""
        try:
            while self._sent < len(self._request):
                self._sent += self.sock.send(self._request[self._sent :])
        except BlockingIOError:
            return False
        return True

    def take(self, piece: bytes) -> bool:
        """Read on; whether the answer has ended."""
        if not self._in_body:
            self._head += piece
            end = self._head.find(b"\r\n\r\n") + 4
            if end < 4:
                return False
            piece, self._head = self._head[end:], self._head[:end]
            self._in_body = True
            length = _LENGTH.search(self._head)
            self._left_bytes = int(length[1]) if length else None
        if piece and not self.first_s:
            self.first_s = monotonic() - self._asked_s
        self._pieces.append(piece)
        if self._left_bytes is not None:
            self._left_bytes -= len(piece)
            return self._left_bytes <= 0
        if len(piece) < len(_LAST_CHUNK):
            piece = b"".join(self._pieces[-len(_LAST_CHUNK) :])
        return piece.endswith(_LAST_CHUNK)

    def wrong(self, event_ends: int) -> str | None:
        """What is wrong with the answer that has ended, if anything; `event_ends` are expected."""
        if not self._head.startswith(b"HTTP/1.1 200 "):
            return "status " + self._head[9:12].decode("latin-1")
        raw = b"".join(self._pieces)
        # A chunk may end within an event's end, though hardly ever: look closer only then.
        if raw.count(b"\n\n") != event_ends and _content(self._head + raw).count(b"\n\n") != event_ends:
            return "wrong number of events"
        return None

    @property
    def closes(self) -> bool:
        """Whether the answer says that the connection ends with it."""
        return _CLOSE.search(self._head) is not None


def _content(message: bytes) -> bytes:
    """The body of a response without its framing; b"" for what is not HTTP."""
    parts = _Parts()
    try:
        httptools.HttpResponseParser(parts).feed_data(message)
    except httptools.HttpParserError:
        return b""
    return b"".join(parts.pieces)


class _Parts:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)
