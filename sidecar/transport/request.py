"""Turns an httpx.Request into the bytes that go out first, and says what is left to upload.

Rule: pure. Header fields go out verbatim and in order; whatever could make an engine see another message than
the caller meant (a line break in a field, two framings, a body of another length) is refused before a byte
leaves.
"""

import functools
import re
from dataclasses import dataclass
from typing import NamedTuple

import httpx

from sidecar.transport.messages import RawRequest, raw_headers

Fields = list[tuple[bytes, bytes]]

# RFC 9110 5.6.2: a field name and a method are tokens.
_TOKEN_BYTES = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# RFC 9112 3.2 has no whitespace or control in a target. Bytes over 0x7f are not legal either, but harmless,
# and go on as they came.
_BAD_IN_TARGET = re.compile(rb"[\x00-\x20\x7f]")
_FRAMING_NAMES = frozenset((b"content-length", b"transfer-encoding", b"expect", b"connection"))
# Names and methods whose check is remembered: real traffic has some dozens. The bound is for a client that
# makes names up, 64 KiB long.
_REMEMBERED = 256

CHUNKED_FIELD = (b"Transfer-Encoding", b"chunked")
LAST_CHUNK = b"0\r\n\r\n"


@dataclass(slots=True)
class _Framing:
    """What the request's own header fields say about its body."""

    length_bytes: int | None = None
    chunked: bool = False
    expects_continue: bool = False
    closes: bool = False


@dataclass(frozen=True, slots=True)
class StreamedBody:
    """A body that is uploaded piece by piece.

    length_bytes is None for chunked framing; expects_continue: it waits for the engine's 100.
    """

    stream: httpx.AsyncByteStream
    length_bytes: int | None
    expects_continue: bool


class Outgoing(NamedTuple):
    """A request ready to go. (A tuple: made for every leg, and a frozen dataclass costs twice as much.)

    parts     written at once, by one vectored write: the head, and the body if its bytes are known
    streamed  what follows, if anything
    to_head   it is a HEAD, so the answer has no body
    closes    it asks for the connection to end with it
    """

    parts: tuple[bytes, ...]
    streamed: StreamedBody | None
    to_head: bool
    closes: bool


def serialise(request: httpx.Request) -> Outgoing:
    """The wire form of a request.

    Raises httpx.LocalProtocolError for a method, target or header field that cannot be sent safely, for
    framing that contradicts itself, and for known bytes that are not as long as Content-Length says.
    """
    fields = raw_headers(request)
    framing = _framing(fields)
    method = _method(request.method)
    body = _known(request)
    if body is not None:
        sized = framing.length_bytes == len(body) > 0
        after_head = (body,) if sized else _known_body(fields, framing, body)
        parts = (_head(request, method, fields), *after_head)
        return Outgoing(parts, None, method == b"HEAD", framing.closes)
    stream = request.stream
    if not isinstance(stream, httpx.AsyncByteStream):
        raise TypeError(f"the body of a request must be an AsyncByteStream, not {type(stream).__name__}")
    if framing.length_bytes is None and not framing.chunked:
        fields.append(CHUNKED_FIELD)
    streamed = StreamedBody(stream, framing.length_bytes, framing.expects_continue)
    return Outgoing((_head(request, method, fields),), streamed, method == b"HEAD", framing.closes)


def _known(request: httpx.Request) -> bytes | None:
    """The body if its bytes are there."""
    if isinstance(request, RawRequest):
        return request.known
    stream = request.stream
    return b"".join(stream) if isinstance(stream, httpx.ByteStream) else None


def chunk(piece: bytes) -> tuple[bytes, bytes, bytes]:
    """One chunk of a chunked body (RFC 9112 7.1), in three buffers so that the piece is not copied here."""
    return b"%x\r\n" % len(piece), piece, b"\r\n"


def _known_body(fields: Fields, framing: _Framing, body: bytes) -> tuple[bytes, ...]:
    """What follows the head. Adds a header field if there is a body and nothing says how it is framed."""
    if framing.length_bytes is not None:
        if framing.length_bytes != len(body):
            raise httpx.LocalProtocolError(
                f"Content-Length is {framing.length_bytes} but the body has {len(body)} bytes"
            )
        return (body,) if body else ()
    if not body:
        return (LAST_CHUNK,) if framing.chunked else ()
    if not framing.chunked:
        fields.append(CHUNKED_FIELD)
    return *chunk(body), LAST_CHUNK


def _head(request: httpx.Request, method: bytes, fields: Fields) -> bytes:
    target = request.target if isinstance(request, RawRequest) else request.extensions.get("target")
    if target is None:
        target = request.url.raw_path
    if not target or _BAD_IN_TARGET.search(target):
        raise httpx.LocalProtocolError(f"cannot send the request target {target!r}")
    # One look in C instead of one in Python per field; without `in`, see server/framing.py.
    values = b"".join([value for _, value in fields])
    if values.count(b"\r") or values.count(b"\n") or values.count(b"\0"):
        raise httpx.LocalProtocolError("a header field holds a line break or a NUL")
    return b"\r\n".join((b"%b %b HTTP/1.1" % (method, target), *map(b": ".join, fields), b"", b""))


def _framing(fields: Fields) -> _Framing:
    framing = _Framing()
    for name, value in fields:
        framing_name = _framing_name(name)
        if framing_name is None:
            continue
        if framing_name == b"content-length" and framing.length_bytes is None and value.isdigit():
            framing.length_bytes = int(value)
        else:
            _note(framing, framing_name, value.strip(b" \t"))
    if framing.chunked and framing.length_bytes is not None:
        raise httpx.LocalProtocolError("both Content-Length and Transfer-Encoding")
    return framing


def _note(framing: _Framing, name: bytes, value: bytes) -> None:
    match name:
        case b"content-length":
            if framing.length_bytes is not None or not value.isdigit():
                raise httpx.LocalProtocolError("not one Content-Length that is a number")
            framing.length_bytes = int(value)
        case b"transfer-encoding":
            if framing.chunked or value.lower() != b"chunked":
                raise httpx.LocalProtocolError("Transfer-Encoding other than chunked")
            framing.chunked = True
        case b"expect":
            framing.expects_continue = value.lower() == b"100-continue"
        case _:
            framing.closes = framing.closes or b"close" in value.lower()


@functools.lru_cache(_REMEMBERED)
def _framing_name(name: bytes) -> bytes | None:
    """The lower-case name if it is one that matters here."""
    if not name or name.translate(None, _TOKEN_BYTES):
        raise httpx.LocalProtocolError(f"a header field's name is not a token: {name!r}")
    lower = name.lower()
    return lower if lower in _FRAMING_NAMES else None


@functools.lru_cache(_REMEMBERED)
def _method(method: str) -> bytes:
    name = method.encode("latin-1", "replace")
    if not name or name.translate(None, _TOKEN_BYTES) or name == b"CONNECT":
        raise httpx.LocalProtocolError(f"cannot send the method {method!r}")
    return name
