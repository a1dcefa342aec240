"""The body of a response: pushed on as it comes (relay) or pulled (iteration).

Rule: a body ends cleanly only if its framing says so, and leaving it early closes the socket. What comes
before anyone reads is kept, up to a bound; after that the engine is not read from.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import httpx

from sidecar.transport.answer import Answer

if TYPE_CHECKING:
    from sidecar.transport.connection import Connection

# Kept for a reader that has not come yet or is slow: as asyncio's own high-water mark for writing. One read
# of the socket (at most 256 KiB, in uvloop and asyncio alike) may come on top.
KEPT_LIMIT_BYTES = 65_536


class BodyStream(httpx.AsyncByteStream):
    """The body of one response: read it once, by relay() or by iteration; aclose() it if not to the end."""

    __slots__ = ("_answer", "_connection", "_full", "_kept", "_kept_bytes", "_opened", "_paused")

    def __init__(self, answer: Answer, connection: "Connection") -> None:
        self._answer = answer
        self._connection = connection
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._full = self._paused = self._opened = False
        answer.write = self._keep

    @property
    def trailers(self) -> list[tuple[bytes, bytes]]:
        """Trailer fields as (name, value), as sent; filled once the body has ended."""
        return self._answer.trailers

    @property
    def kept(self) -> bytes:
        """What has come before anyone reads; it stays for the reader."""
        return b"".join(self._kept)

    @property
    def arrived(self) -> bool:
        """Whether there is something to read, or nothing more to wait for."""
        return self._kept_bytes > 0 or self._answer.settled

    @property
    def fault(self) -> BaseException | None:
        """Why the body was cut short, if it was."""
        return self._answer.fault

    async def more(self) -> bool:
        """Wait for bytes beyond `kept`; False when none come before somebody reads: at the end, or full.

        To be called before reading. Raises what cut the body short.
        """
        answer, before_bytes = self._answer, self._kept_bytes
        while not answer.settled and self._kept_bytes == before_bytes:
            if self._full:
                return False
            answer.waiter = self._connection.future()
            try:
                await answer.waiter
            except BaseException:
                self.abandon()
                raise
        if answer.fault is not None:
            raise answer.fault
        return self._kept_bytes > before_bytes

    async def relay(self, write: Callable[[bytes], object]) -> None:
        """Give every body piece to write, in the same loop turn in which it comes; return at the body's end.

        write is called synchronously and must not block; it may call pause(). Raises
        httpx.RemoteProtocolError for a cut body or bad framing, httpx.ReadError for a reset, and whatever
        write raised, the socket closed.
        """
        self._open()
        answer = self._answer
        try:
            while self._kept:
                write(self._kept.popleft())
            self._kept_bytes = 0
            if not answer.settled:
                answer.write = write
                self._set_full(full=False)
                answer.waiter = self._connection.future()
                await answer.waiter
        except BaseException:
            self.abandon()
            raise
        if answer.fault is not None:
            raise answer.fault

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._open()
        answer, kept = self._answer, self._kept
        try:
            while True:
                while kept:
                    piece = kept.popleft()
                    self._kept_bytes -= len(piece)
                    if self._full and self._kept_bytes <= KEPT_LIMIT_BYTES // 2:
                        self._set_full(full=False)
                    yield piece
                if answer.settled:
                    break
                answer.waiter = self._connection.future()
                await answer.waiter
        except BaseException:
            self.abandon()
            raise
        if answer.fault is not None:
            raise answer.fault

    def pause(self) -> None:
        """Stop reading from the engine: the receiver is slow. At most what is already read still comes."""
        self._paused = True
        self._throttle()

    def resume(self) -> None:
        """Read from the engine again."""
        self._paused = False
        self._throttle()

    async def aclose(self) -> None:
        """Leave the body: the socket is closed unless all of it has come."""
        self.leave()

    def leave(self) -> None:
        """aclose() for those who cannot wait or need not."""
        self._opened = True
        self._kept.clear()
        if not self._answer.settled:
            self.abandon()

    def abandon(self) -> None:
        """aclose() for callers that must not wait, such as a cancelled one."""
        if not self._answer.settled:
            self._connection.fail(self._answer, httpx.StreamClosed())

    def _open(self) -> None:
        if self._opened:
            raise httpx.StreamConsumed()
        self._opened = True

    def _keep(self, piece: bytes) -> None:
        self._kept.append(piece)
        self._kept_bytes += len(piece)
        if self._kept_bytes > KEPT_LIMIT_BYTES:
            self._set_full(full=True)
        self._answer.wake()

    def _set_full(self, *, full: bool) -> None:
        if full != self._full:
            self._full = full
            self._throttle()

    def _throttle(self) -> None:
        # A settled answer's connection may already serve somebody else.
        if not self._answer.settled:
            self._connection.read_while(open_=not (self._paused or self._full))
