"""Holds one request's body between the socket and whoever reads it.

Rule: a body is joined once, and never more than the reader's limit (or HIGH_WATER_BYTES) of it waits here.
"""

import asyncio
from typing import Protocol

from sidecar.server.filling import FIRST_BYTES, Filling, Outcome

HIGH_WATER_BYTES = 262144
"""Bytes of body held for a reader slower than the client before the socket is no longer read: as much as one
read of an asyncio transport can bring (CPython 3.11 `selector_events.py`, max_size)."""

_MAX_PIECES = 4096
"""Pieces kept apart before they are joined into one block: a body sent in tiny chunks costs its own size, not
an object of forty-odd bytes per chunk. Ordinary bodies (64 KiB a read, 64 MiB in all) never get there."""


class BodyTooLarge(Exception):
    """A request body is longer than the reader allows."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"request body is larger than {limit_bytes} bytes")
        self.limit_bytes = limit_bytes


class BodyStalled(Exception):
    """Nothing more of a request body has come for too long."""

    def __init__(self, silent_s: float) -> None:
        super().__init__(f"nothing more of the request body came within {silent_s:g} s")
        self.silent_s = silent_s


class ClientGone(ConnectionError):
    """The client left, or its exchange is over, before what was asked for."""


class Valve(Protocol):
    """What a body needs of its connection: to stop and start reading from the socket (both idempotent).

    body_timeout_s: how long its client may be silent in the middle of it.
    """

    loop: asyncio.AbstractEventLoop
    body_timeout_s: float

    def pause_reading(self) -> None:
        """Stop reading from the client."""

    def resume_reading(self) -> None:
        """Read from the client again."""

    def fill(self, held: bytes, length_bytes: int, outcome: Outcome) -> Filling:
        """Receive what `held` begins into one place; then tell the outcome."""

    def stop_filling(self) -> None:
        """Receive into pieces again."""


class RequestBody:
    """One request's body as it arrives.

    `length_bytes` is what the head declared, negative for chunks; `filled`: its rest came past the parser.
    """

    __slots__ = (
        "_blocks",
        "_discarding",
        "_filling",
        "_held_bytes",
        "_limit_bytes",
        "_lost",
        "_pieces",
        "_short",
        "_timer",
        "_valve",
        "_waiter",
        "complete",
        "filled",
        "length_bytes",
        "streaming",
    )

    def __init__(self, valve: Valve, length_bytes: int) -> None:
        self._valve = valve
        self.length_bytes = length_bytes
        self.complete = False
        self.streaming = False
        self._pieces: list[bytes] = []
        self._blocks: list[bytes] = []
        self._held_bytes = 0
        self._limit_bytes = -1
        self._discarding = False
        self._lost = self._short = False
        self._filling: Filling | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.filled = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def untouched(self) -> bool:
        """Whether no byte of it has arrived yet."""
        return not (self.complete or self._pieces or self._blocks)

    def feed(self, piece: bytes) -> None:
        """Take a piece off the socket; stops reading it when the reader is behind."""
        if self._discarding:
            self._valve.pause_reading()
            return
        pieces = self._pieces
        pieces.append(piece)
        self._held_bytes += len(piece)
        if len(pieces) == _MAX_PIECES:
            self._blocks.append(b"".join(pieces))
            pieces.clear()
        if self._limit_bytes < 0:
            if self._held_bytes > HIGH_WATER_BYTES:
                self._valve.pause_reading()
            self._wake()
        elif self._held_bytes > self._limit_bytes:
            self._wake()

    def end(self) -> None:
        """The client has sent all of it."""
        self.complete = True
        self._wake()

    def abandon(self) -> None:
        """The exchange is over: drop what is held; a reader gets ClientGone."""
        self._lost = True
        self._discard()
        self._wake()

    async def read(self, limit_bytes: int) -> bytes | bytearray:
        """The whole body, once.

        Raises BodyTooLarge (as soon as it is known), BodyStalled, ClientGone, MemoryError.
        """
        if self.length_bytes > limit_bytes:
            self._discard()
            raise BodyTooLarge(limit_bytes)
        self._limit_bytes = limit_bytes
        if not self.complete:
            self._valve.resume_reading()
            if self.length_bytes - self._held_bytes > FIRST_BYTES and not self._lost:
                return await self._read_filled()
        while not self.complete and self._held_bytes <= limit_bytes:
            await self._arrival()
        if self._held_bytes > limit_bytes:
            self._discard()
            raise BodyTooLarge(limit_bytes)
        return self._take()

    async def next_piece(self) -> bytes:
        """All that has arrived and was not taken yet, waiting for some; b"" at the end.

        Raises BodyStalled, ClientGone.
        """
        self.streaming = True
        while not self._held_bytes and not self.complete:
            await self._arrival()
        piece = self._take()
        if not self.complete:
            self._valve.resume_reading()
        return piece

    def _take(self) -> bytes:
        pieces = [*self._blocks, *self._pieces] if self._blocks else self._pieces
        self._pieces, self._blocks, self._held_bytes = [], [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _discard(self) -> None:
        self._discarding = True
        self._take()
        self._stop_filling()

    async def _read_filled(self) -> bytearray:
        """The whole of a large body of announced length, without pieces."""
        outcome = Outcome(self._filled, self._ran_short)
        filling = self._filling = self._valve.fill(self._take(), self.length_bytes, outcome)
        while not self.complete:
            await self._arrival()
        return filling.place

    def _filled(self) -> None:
        self._stop_filling()
        self.filled = True
        self.end()

    def _ran_short(self) -> None:
        """There is no memory for the rest, which is not read; whoever reads gets MemoryError."""
        self._short = True
        self._discard()
        self._wake()

    def _stop_filling(self) -> None:
        if self._filling:
            self._filling = None
            self._valve.stop_filling()

    async def _arrival(self) -> None:
        if self._lost:
            raise ClientGone("the client's request body ended early")
        if self._short:
            raise MemoryError("no memory for a request's body")
        self._waiter = waiter = self._valve.loop.create_future()
        self._look_later()
        try:
            await waiter
        finally:
            self._waiter = None
            if self._timer is not None:
                self._timer.cancel()

    def _look_later(self) -> None:
        self._timer = self._valve.loop.call_later(self._valve.body_timeout_s, self._look, self._came_bytes())

    def _look(self, before_bytes: int) -> None:
        """See whether more has come: a body may take as long as it likes, but not stand still."""
        if self._came_bytes() != before_bytes:
            self._look_later()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(BodyStalled(self._valve.body_timeout_s))
            self._discard()

    def _came_bytes(self) -> int:
        return self._filling.at_bytes if self._filling else self._held_bytes

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
