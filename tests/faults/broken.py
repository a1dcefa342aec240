"""What can be wrong with an engine: what it says instead of its answer, and what the client is to see.

Rule: a fault is bytes and an end; which engine has it, and on whose way, is the test's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from tests.engines import Answer, Got, Script
from tests.faults.ways import TEXT, healthy


class End(Enum):
    """What an engine does once it has said what it says."""

    KEEP = auto()
    CLOSE = auto()
    RESET = auto()
    HANG = auto()


class Seen(Enum):
    """What a fault means.

    RIGHT: nothing is wrong after all. STATUS: an answer that refuses. UNUSABLE: a whole answer of status 2xx
    that is not what it should be. DEAD: no whole answer. SILENT: nothing happens any more.
    """

    RIGHT = auto()
    STATUS = auto()
    UNUSABLE = auto()
    DEAD = auto()
    SILENT = auto()


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to fail. says: the bytes on the wire, made of a healthy answer's type and content."""

    says: Callable[[str, bytes], bytes]
    end: End
    seen: Seen

    def script(self, role: str) -> Script:
        """An engine of this role that fails like this, each time."""

        async def script(got: Got, answer: Answer) -> None:
            await answer.raw(self.says(*healthy(role, got)))
            # The sidecar is to read it before the connection ends: a reset takes back what is unread.
            await asyncio.sleep(0.02 if self.end is End.RESET else 0)
            match self.end:
                case End.CLOSE:
                    answer.drop()
                case End.RESET:
                    answer.reset()
                case End.HANG:
                    await asyncio.sleep(30)
                case End.KEEP:
                    pass

        return script


def _head(kind: str, *fields: str, status: str = "200 OK", version: str = "1.1") -> bytes:
    return "\r\n".join([f"HTTP/{version} {status}", f"content-type: {kind}", *fields, "", ""]).encode()


def _sized(kind: str, content: bytes, status: str = "200 OK") -> bytes:
    return _head(kind, f"content-length: {len(content)}", status=status) + content


def _chunked(kind: str, *pieces: bytes) -> bytes:
    chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    return _head(kind, "transfer-encoding: chunked") + b"".join(chunks)


def _half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _status(status: str, *fields: str) -> Fault:
    content = b'{"error": "told"}'
    head = _head("application/json", *fields, f"content-length: {len(content)}", status=status)
    return Fault(lambda kind, _: head + content, End.KEEP, Seen.STATUS)


def _always(text: bytes, seen: Seen = Seen.DEAD) -> Fault:
    return Fault(lambda kind, content: text, End.KEEP, seen)


def _content(content: bytes) -> Fault:
    return Fault(lambda kind, _: _sized("application/json", content), End.KEEP, Seen.UNUSABLE)


def _huge(kind: str, content: bytes) -> bytes:
    """The healthy answer, and 8 MiB that nobody asked for: a comment in a stream, a field in a document."""
    if TEXT.encode() not in content:
        return _sized(kind, content)  # a refusal of 8 MiB would not be taken for one (sidecar/offer.py)
    much = b"x" * (8 << 20)
    if kind == "text/event-stream":
        return _sized(kind, content.replace(b"data: [DONE]", b":" + much + b"\n\ndata: [DONE]"))
    return _sized(kind, json.dumps({**json.loads(content), "much": much.decode()}).encode())


# Where an engine can stop: what it has said by then.
_STOPS: dict[str, Callable[[str, bytes], bytes]] = {
    "before the head": lambda kind, content: b"",
    "within the head": lambda kind, content: b"HTTP/1.1 200 OK\r\ncontent-ty",
    "after the head": lambda kind, content: _head(kind, f"content-length: {len(content)}"),
    "mid-body": lambda kind, content: _head(kind, f"content-length: {len(content)}") + _half(content),
    "after a chunked head": lambda kind, content: _chunked(kind),
    "mid-chunk": lambda kind, content: _chunked(kind) + b"%x\r\n" % len(content) + _half(content),
    "after a chunk": lambda kind, content: _chunked(kind, _half(content)),
    "before the last chunk": lambda kind, content: _chunked(kind, content),
}
_ENDS = {
    "closes": (End.CLOSE, Seen.DEAD),
    "resets": (End.RESET, Seen.DEAD),
    "hangs": (End.HANG, Seen.SILENT),
}

FAULTS: dict[str, Fault] = {
    **{
        f"{verb} {where}": Fault(says, end, seen)
        for where, says in _STOPS.items()
        for verb, (end, seen) in _ENDS.items()
    },
    # What is no HTTP, or none that has one meaning.
    "a TLS handshake": _always(b"\x15\x03\x03\x00\x02\x02\x28" + bytes(64)),
    "another protocol": _always(b"220 mail.example ESMTP\r\n"),
    "zeros": _always(bytes(4096)),
    "a head of 80 KiB": _always(b"HTTP/1.1 200 OK\r\nx: " + b"a" * 81920 + b"\r\ncontent-length: 0\r\n\r\n"),
    "an endless head": _always(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20000),
    "a length and chunks": _always(
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    ),
    "two lengths": _always(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}"),
    "a coding that nobody asked for": _always(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
    ),
    "a chunk size that is none": _always(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"),
    "a switch of protocols": _always(b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"),
    "interim answers without end": _always(b"HTTP/1.1 102 Processing\r\n\r\n" * 4000),
    # Whole answers that are not what they should be.
    "truncated JSON": _content(b'{"choices": ['),
    "a list": _content(b"[]"),
    "a string": _content(b'"hello"'),
    "a page": _content(b"<html><body>It works!</body></html>"),
    "nothing": _content(b""),
    "bytes that are no UTF-8": _content(b'{"choices": "\xff\xfe"}'),
    "nested beyond reading": _content(b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    # Statuses.
    **{
        status: _status(status)
        for status in (
            "300 Many",
            "400 Bad",
            "401 Who",
            "404 Not Here",
            "429 Busy",
            "500 Ouch",
            "503 Later",
            "599 What",
        )
    },
    "307 Elsewhere": _status("307 Elsewhere", "location: http://169.254.169.254/latest"),
    # Nothing wrong after all.
    "early hints": Fault(
        lambda kind, content: (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: </a>\r\n\r\n" + _sized(kind, content)
        ),
        End.KEEP,
        Seen.RIGHT,
    ),
    "a huge answer": Fault(_huge, End.KEEP, Seen.RIGHT),
    "chunks of one byte": Fault(
        lambda kind, content: _chunked(kind, *(bytes([byte]) for byte in content)) + b"0\r\n\r\n",
        End.KEEP,
        Seen.RIGHT,
    ),
    "an end by close": Fault(lambda kind, content: _head(kind) + content, End.CLOSE, Seen.RIGHT),
    "HTTP/1.0": Fault(
        lambda kind, content: _head(kind, version="1.0", status="200 OK") + content, End.CLOSE, Seen.RIGHT
    ),
    "more than it announced": Fault(
        lambda kind, content: _sized(kind, content) + b"HTTP/1.1 200 OK\r\n", End.KEEP, Seen.RIGHT
    ),
}
