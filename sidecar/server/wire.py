"""One client socket: flow control both ways, one deadline, noticing that the client left, the ways to close.

Rule: knows bytes and time only; what the bytes mean is the protocol's business.
"""

import asyncio
import socket
import struct
from typing import cast

from sidecar.server.filling import Filling, Outcome

WRITE_HIGH_BYTES = 262144
"""Bytes in a socket's write buffer at which an answer's source is paused: four of uvloop's 64 KiB reads, so
that a large body relayed to a fast client does not stop its engine at every piece."""

WRITE_LOW_BYTES = 65536
"""Bytes at which the source goes on: one read's worth is left to send while the next one is fetched."""

LINGER_S = 1.0
"""Seconds a closing connection stays for a client that still sends (RFC 9112 9.6): it bounds what a hostile
client costs, and a round trip fits in it (Go's net/http takes 0.5 s)."""

LINGER_BYTES = 262144
"""Bytes thrown away meanwhile, as in Go's net/http; a client that sends more is held by its full socket."""

KEEPALIVE_S = 15
"""Seconds of silence after which a client's machine is asked whether it is there, and between two questions,
as in Go's net/http: a client that vanished without a word must not hold its request for hours."""

KEEPALIVE_PROBES = 9
"""Unanswered questions after which the client is gone: Linux' own default (tcp(7))."""

LOOK_S = 0.05
"""Seconds between two looks at a socket that is not read. Event loops report neither FIN nor reset then, and
a client's leaving is to reach its request within 100 ms, of which this is half."""

_ESTABLISHED = 1  # TCP_ESTABLISHED (Linux include/net/tcp_states.h); a FIN makes it 8, a reset 7

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on with zero seconds: close() resets (socket(7))


class Wire(asyncio.Protocol):
    """A client's socket; subclasses say what arrives and what a passed deadline means."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.transport: asyncio.Transport
        self.writing_paused = False
        self.deaf = False
        self._writers: list[asyncio.Future[None]] = []
        self._reading_paused = False
        self._look_timer: asyncio.TimerHandle | None = None
        self._discarded_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._deadline_s: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        self.transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self.deaf = True
        self._stop_looking()
        self.forget_deadline()
        self.resume_writing()

    def pause_writing(self) -> None:
        """The write buffer is over WRITE_HIGH_BYTES."""
        self.writing_paused = True

    def resume_writing(self) -> None:
        """The write buffer has drained to WRITE_LOW_BYTES."""
        self.writing_paused = False
        writers, self._writers = self._writers, []
        for writer in writers:
            if not writer.done():
                writer.set_result(None)

    async def writable(self) -> None:
        """Wait until the write buffer has drained, or the socket is gone."""
        writer = self.loop.create_future()
        self._writers.append(writer)
        await writer

    def pause_reading(self) -> None:
        """Leave further bytes in the socket."""
        if not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()
            self._look_timer = self.loop.call_later(LOOK_S, self._look)

    def resume_reading(self) -> None:
        """Take bytes off the socket again."""
        if self._reading_paused:
            self._reading_paused = False
            self._stop_looking()
            self.transport.resume_reading()

    def fill(self, held: bytes, length_bytes: int, outcome: Outcome) -> Filling:
        """Receive what `held` begins into one place (filling.py); then tell the outcome."""
        filling = Filling(self, held, length_bytes, outcome)
        self.transport.set_protocol(filling)
        return filling

    def stop_filling(self) -> None:
        """What comes now is heard here again, the place filled or not."""
        self.transport.set_protocol(self)

    def set_deadline(self, after_s: float | None) -> None:
        """Have `deadline_passed` called `after_s` seconds from now, and not when set before; None: never.

        A timer that is early is left to find out by itself: most deadlines are moved at every request.
        """
        if after_s is None:
            self._deadline_s = None
            return
        at_s = self._deadline_s = self.loop.time() + after_s
        if self._timer is not None and self._timer_at_s > at_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._set_timer(at_s)

    def forget_deadline(self) -> None:
        """Let go of the timer as well."""
        self._deadline_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def deadline_passed(self) -> None:
        """Nothing came in time: close."""
        self.transport.close()

    def close(self, *, unread: bool) -> None:
        """Close once everything written is sent; `unread` says that the client may still be sending."""
        if self.transport.is_closing():
            return
        if unread:
            self._linger()
        else:
            self.transport.close()

    def reset(self) -> None:
        """Close after what was written with a reset, or over TLS without a close_notify."""
        sock: socket.socket | None = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if self.transport.get_extra_info("ssl_object") is None:
            self.transport.close()
        else:
            self.transport.abort()

    def discard(self, chunk: bytes) -> None:
        """Throw away what a client sends that is no longer listened to, up to LINGER_BYTES."""
        self._discarded_bytes += len(chunk)
        if self._discarded_bytes > LINGER_BYTES:
            self.pause_reading()

    def _linger(self) -> None:
        # With unread bytes in the socket, close() would send a reset that can overtake the answer. So only
        # our side ends, and the rest waits for the client's end (eof_received) or for LINGER_S.
        self.deaf = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.resume_reading()
        self.set_deadline(LINGER_S)

    def _look(self) -> None:
        """See whether the client is still there.

        A reset shows at once, a FIN as soon as the kernel has room for all that the client sent before it.
        """
        self._look_timer = None
        if self.transport.is_closing():
            return
        if self._connected():
            self._look_timer = self.loop.call_later(LOOK_S, self._look)
        else:
            self.eof_received()

    def _connected(self) -> bool:
        sock: socket.socket | None = self.transport.get_extra_info("socket")
        if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
            return True  # nothing to ask: as good as before
        try:
            # One byte of struct tcp_info: tcpi_state is its first (Linux include/uapi/linux/tcp.h).
            return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED
        except OSError:
            return False  # closed under the transport

    def _stop_looking(self) -> None:
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None

    def _set_timer(self, at_s: float) -> None:
        self._timer_at_s = at_s
        self._timer = self.loop.call_at(at_s, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._deadline_s is None:
            return
        if self.loop.time() < self._deadline_s:
            self._set_timer(self._deadline_s)
        else:
            self.deadline_passed()
