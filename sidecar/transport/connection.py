"""One socket to an engine: hands what comes to the answer being read, and knows when it may serve again.

Rule: a connection goes back to the pool only when the request left whole, the answer came whole and nothing
else came; in every other case it is aborted at once.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import cast

import httpx
from httptools import HttpParserError, HttpParserUpgrade

from sidecar.transport.answer import Answer, fault_of
from sidecar.transport.body import BodyStream
from sidecar.transport.request import Outgoing

# A leg has no read timeout, so only probes can tell that an engine's host is gone. Values of Go's net.Dialer.
_PROBE_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),  # s before the first probe
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),  # s between probes
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 9),  # unanswered probes until the connection counts as dead
)
# As much as the event loops themselves read at once.
_READ_BYTES = 262_144


class Connection(asyncio.Protocol):
    """A connection to one engine, serving one request at a time.

    number       counts the connections of one transport, for logs
    request_sent the current request is wholly in the socket's hands
    """

    __slots__ = (
        "_answer",
        "_closes",
        "_drained",
        "_loop",
        "_max_head_bytes",
        "_on_idle",
        "_on_lost",
        "_reading",
        "_transport",
        "number",
        "request_sent",
        "write_paused",
    )

    def __init__(
        self,
        number: int,
        max_head_bytes: int,
        on_idle: Callable[["Connection"], None],
        on_lost: Callable[["Connection"], None],
    ) -> None:
        self.number = number
        self.request_sent = False
        self.write_paused = False
        self._max_head_bytes = max_head_bytes
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._answer: Answer | None = None
        self._closes = False
        self._reading = True
        self._drained: asyncio.Future[None] | None = None

    @property
    def usable(self) -> bool:
        """Whether a request can be written."""
        return not self._transport.is_closing()

    def future(self) -> "asyncio.Future[None]":
        """A bare future of this connection's loop."""
        return self._loop.create_future()

    def begin(self, outgoing: Outgoing) -> tuple[Answer, BodyStream]:
        """Write the request's first bytes and start reading its answer."""
        answer = Answer(self._loop.create_future(), self._max_head_bytes, to_head=outgoing.to_head)
        body = BodyStream(answer, self)
        self._answer = answer
        self._closes = outgoing.closes
        self.request_sent = outgoing.streamed is None or outgoing.streamed.length_bytes == 0
        if self._transport.is_closing():
            # Accepted and closed again before this turn of the loop.
            self._end(None)
        elif len(outgoing.parts) == 1:
            self._transport.write(outgoing.parts[0])
        else:
            self._transport.writelines(outgoing.parts)
        return answer, body

    def write(self, parts: tuple[bytes, ...]) -> None:
        """Write more of a streamed body. Wait for drained() while write_paused."""
        self._transport.writelines(parts)

    async def drained(self) -> None:
        """Wait until the socket takes more. Once it is lost it never will: then the upload is cancelled."""
        if self.write_paused:
            self._drained = self._loop.create_future()
            await self._drained

    def read_while(self, *, open_: bool) -> None:
        """Read from the engine, or stop."""
        if open_ != self._reading:
            self._reading = open_
            if open_:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def fail(self, answer: Answer, fault: BaseException) -> None:
        """End this answer with an error and close the socket at once; no effect once it has ended."""
        if self._answer is answer:
            self._answer = None
            answer.settle(fault)
            self.abort()

    def abort(self) -> None:
        """Close the socket at once, whatever is still unsent."""
        self._transport.abort()

    def shut(self, fault: BaseException) -> None:
        """Close the socket for the transport's end."""
        if self._answer is not None:
            self.fail(self._answer, fault)
        else:
            self.abort()

    # What follows is called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        # A socket that is already dead refuses options; its death is reported by connection_lost.
        with contextlib.suppress(OSError):
            for level, option, number in _PROBE_OPTIONS:
                sock.setsockopt(level, option, number)

    def data_received(self, received: bytes) -> None:
        answer = self._answer
        if answer is None:
            # Nobody asked: another answer, or an engine's last words (408) before it closes.
            self.abort()
            return
        answer.quiet_bytes += len(received)
        fault: BaseException | None = None
        try:
            answer.feed(received)
        except (HttpParserError, HttpParserUpgrade) as error:
            fault = fault_of(error)
        pieces = answer.pieces
        if pieces:  # what came before bad framing, too
            answer.quiet_bytes = 0
            try:
                # Many small chunks of one read cost one write; a single one is not copied.
                answer.write(b"".join(pieces))
            except Exception as error:  # the receiver's own, which relay() raises
                self.fail(answer, error)
            pieces.clear()
        elif answer.quiet_bytes > self._max_head_bytes:
            fault = fault or answer.over_limit()
        if answer.complete:
            answer.keep_alive = answer.keep_alive and fault is None  # bytes after a complete message
            self._finish(answer)
        elif fault is not None:
            self.fail(answer, fault)

    def eof_received(self) -> None:
        self._end(None)  # returning None closes an idle connection

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._closes = True
            while self._answer is not None and (last_words := self._unread()):
                self.data_received(last_words)
        self._end(exc)
        self._on_lost(self)

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def _unread(self) -> bytes:
        """What the engine said before it reset the connection, if a write found the reset first.

        An engine that refuses an upload answers, closes, and the rest of the upload makes its kernel send a
        reset (RFC 9112 9.6). The loop then gives the socket up with the answer still in the kernel's queue.
        """
        if self._transport.get_extra_info("sslcontext") is not None:
            return b""  # encrypted
        try:
            with socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno())) as sock:
                return sock.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except OSError:
            return b""  # nothing there; the reason is the exception that connection_lost was given

    def _finish(self, answer: Answer) -> None:
        if self._answer is not answer:
            return
        self._answer = None
        answer.settle(None)
        if (
            answer.keep_alive
            and self.request_sent
            and not self._closes
            and not self._transport.get_write_buffer_size()
        ):
            self.read_while(open_=True)
            self._on_idle(self)
        else:
            self.abort()

    def _end(self, exc: Exception | None) -> None:
        answer = self._answer
        if answer is None:
            return
        fault = _lost(exc) if exc is not None else answer.end_of_input()
        if fault is None:
            answer.keep_alive = False
            self._finish(answer)
        else:
            answer.died = True
            self.fail(answer, fault)


def _lost(exc: Exception) -> httpx.TransportError:
    # asyncio reports both directions here; only a write finds a broken pipe.
    if isinstance(exc, BrokenPipeError):
        return httpx.WriteError(f"writing to the engine failed: {exc}")
    return httpx.ReadError(f"the connection to the engine was lost: {exc}")
