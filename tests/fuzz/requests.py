"""Bytes from clients: read in one way however they arrive, and sent on as exactly one request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import httptools
import httpx

from sidecar import headers as names
from sidecar.server.admission import CHUNKED, Head, Refusal
from sidecar.server.inbound import RequestBody
from sidecar.server.limits import ClientLimits
from sidecar.server.reader import RequestReader
from sidecar.transport import Place, RawRequest
from sidecar.transport.request import serialise

PLACE = Place.of(httpx.URL("http://engine:8000/"))


class NoValve:
    """A connection that is never slow."""

    loop: asyncio.AbstractEventLoop

    def pause_reading(self) -> None:
        """Nothing to stop."""

    def resume_reading(self) -> None:
        """Nothing to start."""


@dataclass
class Read:
    """What a reader made of a connection's bytes: requests with their bodies, and why it stopped."""

    heads: list[Head] = field(default_factory=list)
    bodies: list[RequestBody | None] = field(default_factory=list)
    refused: int = 0

    def request_arrived(self, head: Head, *, keep_alive: bool) -> RequestBody | None:
        """Take a request, and let its body grow."""
        body = RequestBody(NoValve(), head.body_length) if head.body_length else None  # type: ignore[arg-type]
        self.heads.append(head)
        self.bodies.append(body)
        return body

    @property
    def seen(self) -> list[tuple[Head, bytes, bool]]:
        """Each request, its body so far, and whether that is all of it."""
        pairs = zip(self.heads, self.bodies, strict=True)
        return [
            (head, b"" if body is None else held(body), body is None or body.complete) for head, body in pairs
        ]


def held(body: RequestBody) -> bytes:
    """What of a body has arrived."""
    return b"".join([*body._blocks, *body._pieces])


def read(pieces: list[bytes]) -> Read:
    """Feed a reader as a connection would."""
    made = Read()
    reader = RequestReader(made, ClientLimits().header_bytes)
    try:
        for piece in pieces:
            if reader.feed(piece):
                break  # a tunnel: the rest is no HTTP
            if made.heads and made.heads[-1].wants_tunnel:
                break
    except Refusal as refusal:
        made.refused = refusal.status
    finally:
        reader.close()
    return made


def check_requests(raw: bytes) -> None:
    """Read it at once and byte by byte: the same requests; and each whole one leaves as one request."""
    at_once = read([raw])
    bytewise = read([raw[at : at + 1] for at in range(len(raw))])
    assert at_once.heads == bytewise.heads
    assert at_once.refused == bytewise.refused
    whole = [(head, body) for head, body, complete in bytewise.seen if complete]
    assert whole == [(head, body) for head, body, complete in at_once.seen if complete]
    for head, body in whole:
        check_onward(head, body)


@dataclass
class Parsed:
    """What another parser makes of what we send."""

    bodies: list[bytes] = field(default_factory=list)
    fields: list[tuple[bytes, bytes]] = field(default_factory=list)
    complete: int = 0

    def on_message_begin(self) -> None:
        """One more request."""
        self.bodies.append(b"")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field."""
        self.fields.append((name.lower(), value))

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self.bodies[-1] += piece

    def on_message_complete(self) -> None:
        """It is whole."""
        self.complete += 1


def check_onward(head: Head, body: bytes) -> None:
    """The request that an engine gets for this one is one request with that body, and says so once."""
    fields = [(b"Host", b"engine:8000"), *names.forwarded(head.headers)]
    if body or head.body_length == CHUNKED:
        fields.append((b"Content-Length", b"%d" % len(body)))
    request = RawRequest(head.method.decode("latin-1"), PLACE, fields, body, head.target)
    wire = b"".join(serialise(request).parts)
    parsed = Parsed()
    parser = httptools.HttpRequestParser(parsed)
    try:
        parser.feed_data(wire)
    except httptools.HttpParserUpgrade as upgrade:  # no Upgrade field goes on
        raise AssertionError(wire) from upgrade
    assert (parsed.bodies, parsed.complete) == ([body], 1)
    sent = [name for name, _ in parsed.fields]
    assert sent.count(b"host") == 1
    assert sent.count(b"content-length") + sent.count(b"transfer-encoding") <= 1
    assert set(sent).isdisjoint(names.ROUTING)
