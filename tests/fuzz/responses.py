"""Bytes from engines: read in one way however they arrive, and as another parser reads them."""

from __future__ import annotations

import asyncio
import atexit
import functools
from dataclasses import dataclass

import h11
import httpx

from sidecar.transport.connection import Connection
from sidecar.transport.request import Outgoing

MAX_HEAD_BYTES = 4096
EDGE_BYTES = 200


class Socket(asyncio.Transport):
    """A socket that takes whatever is written."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def write(self, data: object) -> None:
        """Nobody reads it."""

    def writelines(self, list_of_data: object) -> None:
        """Nobody reads them."""

    def is_closing(self) -> bool:
        """Whether it is closed."""
        return self.closed

    def abort(self) -> None:
        """Close it."""
        self.closed = True

    def pause_reading(self) -> None:
        """The fuzzer goes on all the same, as a read that is under way would."""

    def resume_reading(self) -> None:
        """See pause_reading."""

    def get_write_buffer_size(self) -> int:
        """All is sent."""
        return 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        """It has no socket under it that options could be set on."""
        return NoOptions() if name == "socket" else default


class NoOptions:
    """What options are set on."""

    def setsockopt(self, *args: object) -> None:
        """None is kept."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of an answer. kept: whether its connection may serve again."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    whole: bool
    kept: bool


def read(pieces: list[bytes], method: bytes) -> Seen:
    """Give a connection these reads and then the end of input."""
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(_loop())
    try:
        return _read(pieces, method)
    finally:
        asyncio._set_running_loop(before)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """A loop that makes futures and never turns; one for all, since making it costs more than a run."""
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


def _read(pieces: list[bytes], method: bytes) -> Seen:
    idle: list[Connection] = []
    connection = Connection(1, MAX_HEAD_BYTES, idle.append, lambda lost: None)
    socket = Socket()
    connection.connection_made(socket)
    head = method + b" / HTTP/1.1\r\n\r\n"
    answer, body = connection.begin(Outgoing((head,), None, method == b"HEAD", False))
    received: list[bytes] = []
    answer.write = received.append
    for piece in pieces:
        if answer.settled:
            break
        connection.data_received(piece)
    kept = bool(idle)
    if not answer.settled:
        connection.eof_received()
        connection.connection_lost(None)
    assert answer.settled
    assert answer.fault is None or isinstance(answer.fault, httpx.TransportError)
    assert kept or socket.closed  # whatever is not kept is closed at once
    body.leave()
    return Seen(answer.status, tuple(answer.headers), b"".join(received), answer.fault is None, kept)


def split(wire: bytes) -> list[bytes]:
    """Byte by byte, but for what is long: its middle comes in one piece."""
    if len(wire) <= 2 * EDGE_BYTES:
        return [wire[at : at + 1] for at in range(len(wire))]
    return [*split(wire[:EDGE_BYTES]), wire[EDGE_BYTES:-EDGE_BYTES], *split(wire[-EDGE_BYTES:])]


def check_responses(raw: bytes) -> None:
    """The first byte chooses the method; the rest is what the engine says before it closes."""
    method = b"HEAD" if raw[:1] == b"H" else b"POST"
    wire = raw[1:]
    at_once = read([wire] if wire else [], method)
    bytewise = read(split(wire), method)
    assert (at_once.status, at_once.headers) == (bytewise.status, bytewise.headers)
    assert (at_once.body, at_once.whole) == (bytewise.body, bytewise.whole)
    if at_once.whole:
        assert at_once.status >= 200
        assert at_once.body == b"" or (method != b"HEAD" and at_once.status not in (204, 304))
        other = as_h11_reads(wire, method)
        assert other is None or other == (at_once.status, at_once.body)


def as_h11_reads(wire: bytes, method: bytes) -> tuple[int, bytes] | None:
    """Status and body as h11 has them; None where it refuses what we take, or finds no end."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method=method, target=b"/", headers=[("host", "a")]))
    connection.send(h11.EndOfMessage())
    status, body = 0, b""
    try:
        connection.receive_data(wire)
        connection.receive_data(b"")
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return status, body
            elif event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
                return None
    except h11.RemoteProtocolError:
        return None
