"""One request's client: what it asked, and the answer that is written back to it.

Rule: an answer's bytes are the application's, only the framing is ours; one that cannot be finished is cut.
"""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from sidecar import problem
from sidecar.server.admission import Head
from sidecar.server.framing import CHUNK_LINES, BodyEnd, frame, last_chunk, response_head
from sidecar.server.inbound import BodyStalled, BodyTooLarge, ClientGone
from sidecar.server.request import Inlet, Request, Source

__all__ = ["BodyStalled", "BodyTooLarge", "Client", "ClientGone", "Source"]


# Looking a member up in an enumeration costs a tenth of relaying an event (CPython 3.11).
_UNDECIDED, _LENGTH, _CHUNKS = BodyEnd.UNDECIDED, BodyEnd.LENGTH, BodyEnd.CHUNKS


class Connection(Inlet, Protocol):
    """What an answer needs of the connection it leaves on."""

    writing_paused: bool

    async def writable(self) -> None:
        """Wait until the socket's buffer has drained, or the client is gone."""

    def answered(self, client: "Client") -> None:
        """The answer is complete: go on with the next request, or close."""

    def cut(self, client: "Client") -> None:
        """End the connection so that the client sees an incomplete answer."""

    def hand_over(self) -> bytes:
        """Let go of the transport; the bytes read after the head."""


class Client(Request):
    """One request and its answer; every method is to be called from the event loop.

    `ended` says that nothing more can be written, `keep_alive` that the connection may outlive the answer;
    `sent_bytes` counts the answer's body, whose first byte was written at `first_byte_s` (time.monotonic()),
    and `writes` its pieces. `also`, when it is set, gives further headers of the answer, at the moment in
    which its head is made.
    """

    __slots__ = (
        "_body_end",
        "_connection",
        "_head",
        "_left_bytes",
        "_over",
        "_source",
        "also",
        "ended",
        "first_byte_s",
        "keep_alive",
        "sent_bytes",
        "task",
        "writes",
    )

    def __init__(self, connection: Connection, head: Head, *, keep_alive: bool) -> None:
        super().__init__(connection, head)
        self._connection = connection
        self.keep_alive = keep_alive
        self.ended = False
        self.sent_bytes = 0
        self.writes = 0
        self.first_byte_s: float | None = None
        self.also: Callable[[], Sequence[tuple[bytes, bytes]]] | None = None
        self.task: asyncio.Task[None] | None = None
        self._body_end = _UNDECIDED
        self._head: bytes | None = None
        self._left_bytes = 0
        self._source: Source | None = None
        self._over: asyncio.Event | None = None

    @property
    def started(self) -> bool:
        """Whether an answer has begun."""
        return self._body_end is not _UNDECIDED

    @property
    def ends_by_close(self) -> bool:
        """Whether a mere end of the connection would look like the answer's end."""
        return self._body_end is BodyEnd.CLOSE

    @property
    def source(self) -> Source | None:
        """Where the answer's bytes come from: paused while this client is slow, at once if it already is."""
        return self._source

    @source.setter
    def source(self, source: Source | None) -> None:
        self._source = source
        if source is not None and self._connection.writing_paused:
            source.pause()

    def start(
        self,
        status: int,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        reason: bytes = b"",
        body_length: int | None,
    ) -> None:
        """Begin the answer; the head leaves with the first piece of the body, or in the next loop turn.

        `body_length` in bytes, None when unknown: chunks then, or the connection's end for HTTP/1.0.
        Raises ValueError for fields that contradict it or break the head, RuntimeError when called twice.
        """
        if self._body_end is not _UNDECIDED:
            raise RuntimeError("the answer has already begun")
        if self.also is not None:
            headers = [*headers, *self.also()]
        # A body nobody reads is not waited for, and must not be taken for a request (RFC 9112 9.6): close.
        keep_alive = self.keep_alive and (self.received or (self.body is not None and self.body.streaming))
        framing = frame(self.asked, status, headers, body_length, keep_alive=keep_alive)
        self._head = response_head(status, reason, [*headers, *framing.added] if framing.added else headers)
        self._body_end = framing.body_end
        self.keep_alive = framing.keep_alive
        self._left_bytes = body_length or 0
        self._expects_continue = False
        self._connection.loop.call_soon(self.flush)

    def write(self, piece: bytes) -> None:
        """Send a piece of the body, framed, in one write; dropped once the client is gone.

        Raises ValueError for more than the announced length, RuntimeError before `start`.
        """
        piece_bytes = len(piece)
        if self.ended or not piece_bytes:
            return
        if self._body_end is _CHUNKS:
            piece = CHUNK_LINES[piece_bytes] + piece + b"\r\n"
        elif not self._fits(piece_bytes):
            return
        self.sent_bytes += piece_bytes
        self.writes += 1
        if self._head is not None:
            self.first_byte_s = monotonic()
            piece = self._head + piece
            self._head = None
        self._transport.write(piece)

    def flush(self) -> None:
        """Send the head now, if it still waits for a piece of the body."""
        head = self._head
        if head and not self.ended:
            self._head = b""  # nothing waits; not None, which says that the body has begun
            self._transport.write(head)

    async def drain(self) -> None:
        """Wait while the socket's buffer is over its high-water mark."""
        while self._connection.writing_paused and not self.ended:
            await self._connection.writable()

    def finish(self, trailers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """End the answer cleanly. Raises RuntimeError before `start` or short of the announced length."""
        if self.ended:
            return
        if self._body_end is _UNDECIDED or (self._body_end is _LENGTH and self._left_bytes):
            self.drop()
            raise RuntimeError("the answer is not complete")
        tail = self._head or b""
        if self._body_end is _CHUNKS:
            tail += last_chunk(trailers)
        if tail:
            self._transport.write(tail)
        self._end()
        self._connection.answered(self)

    def drop(self) -> None:
        """Cut the answer: the client gets what was written, and then an end that is no clean one."""
        if not self.ended:
            # A head still waiting is not sent: alone it could be a whole answer (HEAD, 204, length 0).
            self._end()
            self._connection.cut(self)

    def retract(self) -> bool:
        """Take the answer back if nothing of it has left yet, head included; whether another can begin."""
        if self.ended or not self._head:  # b"" once it has left without a body
            return False
        self._head = None
        self._body_end = _UNDECIDED
        return True

    def fail(self) -> None:
        """The application gave up: a 500 if nothing was sent, a cut otherwise."""
        if self.ended:
            return
        if self.started:
            self.drop()
            return
        body = problem.body(500, "internal error")
        self.keep_alive = False
        self.start(500, problem.headers(500, body), body_length=len(body))
        self.write(body)
        self.finish()

    def lose(self) -> None:
        """The client is gone: cancel the request's task and let go of everything."""
        if not self.ended:
            self._end()
            if self.task is not None:
                self.task.cancel()

    def take_over(self) -> tuple[asyncio.Transport, bytes]:
        """The raw transport and the bytes already read after the head. Raises ClientGone."""
        if self.ended:
            raise ClientGone("the client left before its tunnel was open")
        self._end()
        return self._transport, self._connection.hand_over()

    async def wait_ended(self) -> None:
        """Wait until the answer is complete, cut or given up by the client."""
        if not self.ended:
            self._over = self._over or asyncio.Event()
            await self._over.wait()

    def _end(self) -> None:
        self.ended = True
        if self._over is not None:
            self._over.set()
        self._source = None
        self._expects_continue = False
        if self.body is not None:
            self.body.abandon()

    def _fits(self, piece_bytes: int) -> bool:
        """Whether a piece that needs no chunk framing is to be sent."""
        if self._body_end is _LENGTH:
            if piece_bytes > self._left_bytes:
                raise ValueError("more body than the announced length")
            self._left_bytes -= piece_bytes
            return True
        match self._body_end:
            case BodyEnd.CLOSE:
                return True
            case BodyEnd.UNDECIDED:
                raise RuntimeError("the answer has not begun")
            case _:
                return False
