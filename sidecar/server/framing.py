"""Decides how the end of an answer is told, and writes the heads of answers.

Rule: pure; the application's fields stay as they are, in order, and only framing is added.
"""

import enum
import http
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sidecar import problem
from sidecar.server.admission import Head, Headers, Refusal

_FRAMING_FIELDS = frozenset((b"connection", b"content-length", b"transfer-encoding"))


class BodyEnd(enum.Enum):
    """How a client knows where an answer's body ends (RFC 9112 6.3)."""

    UNDECIDED = enum.auto()
    NO_BODY = enum.auto()
    LENGTH = enum.auto()
    CHUNKS = enum.auto()
    CLOSE = enum.auto()


# Looking a member up in an enumeration costs a tenth of relaying an event (CPython 3.11).
_LENGTH, _CHUNKS = BodyEnd.LENGTH, BodyEnd.CHUNKS


class Framing(NamedTuple):
    """The framing of one answer: `added` are the fields it takes beyond the application's own."""

    body_end: BodyEnd
    keep_alive: bool
    added: Headers


def frame(
    asked: Head,
    status: int,
    headers: Iterable[tuple[bytes, bytes]],
    body_length: int | None,
    *,
    keep_alive: bool,
) -> Framing:
    """Choose the framing of the answer to `asked`; `body_length` in bytes, None when it is not known.

    Raises ValueError for fields that contradict it.
    """
    length, closing = _stated(headers)
    added: Headers = []
    if asked.method == b"HEAD" or status < 200 or status in (204, 304):
        body_end = BodyEnd.NO_BODY  # a content-length here is about another answer (RFC 9110 8.6): it stays
    elif length is not None and length != body_length:
        raise ValueError("content-length contradicts the body")
    elif body_length is not None:
        body_end = _LENGTH
        if length is None:
            added.append((b"content-length", b"%d" % body_length))
    elif asked.http_version == "1.0":
        body_end = BodyEnd.CLOSE
    else:
        body_end = _CHUNKS
        added.append((b"transfer-encoding", b"chunked"))
    if not (keep_alive or closing):
        added.append((b"connection", b"close"))
    return Framing(body_end, keep_alive and not closing, added)


def _stated(headers: Iterable[tuple[bytes, bytes]]) -> tuple[int | None, bool]:
    """The content-length among an answer's fields, and whether they close the connection."""
    length, closing = None, False
    for name, value in headers:
        # Few fields have a length like theirs, and fewer are compared in lower case.
        if len(name) not in (10, 14, 17) or (lowered := name.lower()) not in _FRAMING_FIELDS:
            continue
        if lowered == b"content-length":
            length = int(value)
        elif lowered == b"connection":
            closing = closing or b"close" in value.lower()
        else:
            raise ValueError("transfer-encoding is not the application's to choose")
    return length, closing


def _status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:  # a number without a registered phrase: the reason stays empty (RFC 9112 4)
        phrase = ""
    return b"HTTP/1.1 %d %b\r\n" % (status, phrase.encode())


_STATUS_LINES = {status: _status_line(status) for status in range(100, 600)}


def response_head(status: int, reason: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Serialise an answer's head, fields in order and verbatim. Raises ValueError on CR, LF or NUL in one."""
    line = _STATUS_LINES.get(status)
    if reason or line is None:
        line = b"HTTP/1.1 %d %b\r\n" % (status, reason)
    parts = [line]
    count = 2
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
        count += 1
    parts.append(b"\r\n")
    head = b"".join(parts)
    # Counted over the whole head: three searches instead of three per field. (`in` makes and drops a
    # TypeError for bytes in bytes, bytes_methods.c of CPython 3.11: twice the price of the search.)
    if head.count(b"\n") != count or head.count(b"\r") != count or head.count(b"\0"):
        raise ValueError("line break or NUL in an answer's field")
    return head


class _ChunkLines(dict[int, bytes]):
    """What stands before the bytes of a chunk (RFC 9112 7.1), by their number."""

    def __missing__(self, size_bytes: int) -> bytes:
        return b"%x\r\n" % size_bytes


# Events of token streams are mostly shorter, and to make each one's line costs a tenth of relaying it.
CHUNK_LINES = _ChunkLines({size_bytes: b"%x\r\n" % size_bytes for size_bytes in range(1024)})


def last_chunk(trailers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The zero chunk with its trailer section (RFC 9112 7.1.2)."""
    if not trailers:
        return b"0\r\n\r\n"
    return b"0\r\n" + b"".join(b"%b: %b\r\n" % field for field in trailers) + b"\r\n"


def refusal_answer(refusal: Refusal) -> bytes:
    """The whole answer to a refused request, announcing the close."""
    body = problem.body(refusal.status, refusal.message)
    fields = [*problem.headers(refusal.status, body), (b"connection", b"close")]
    return response_head(refusal.status, b"", fields) + body
