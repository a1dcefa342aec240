"""Receives the rest of one request's body straight into its place: no piece is made, copied or joined.

Rule: takes exactly the announced bytes off the socket, so that what follows them is the connection's again;
everything else that the socket tells goes on to the connection.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

FIRST_BYTES = 65536
"""Bytes made room for when little has come; bodies with no more than that left are not worth a protocol."""

GROWTH = 8
"""How many times as much as has come is made room for: a body of 400 KB gets its place at once, and a client
that announces much and sends little holds no memory for it."""


SPARE_BYTES = 4096
"""Bytes received for nothing once there is no memory for more: a loop takes no empty buffer, nor an error."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is called at the end. filled: the body is whole. short: there is no memory for all of it."""

    filled: Callable[[], None]
    short: Callable[[], None]


class Filling(asyncio.BufferedProtocol):
    """The socket's protocol until the body is `place`, whole, or there is no memory. at_bytes: came."""

    def __init__(
        self, connection: asyncio.Protocol, held: bytes, length_bytes: int, outcome: Outcome
    ) -> None:
        self._connection = connection
        self._length_bytes = length_bytes
        self._outcome = outcome
        self._short = False
        self.at_bytes = len(held)
        self.place = bytearray(self.at_bytes + self._room_bytes())  # zeroed once; to extend it copies as well
        self.place[: self.at_bytes] = held
        self._view = memoryview(self.place)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        # Not in buffer_updated: there the loop still has the last buffer.
        if self.at_bytes == len(self.place):
            self._view.release()
            try:
                self.place.extend(bytes(self._room_bytes()))
            except MemoryError:
                self._short = True
                return memoryview(bytearray(SPARE_BYTES))
            self._view = memoryview(self.place)
        return self._view[self.at_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        if self._short:
            self._outcome.short()
            return
        self.at_bytes += nbytes
        if self.at_bytes == self._length_bytes:
            self._outcome.filled()

    def _room_bytes(self) -> int:
        """For how much more there is to be room."""
        return min(self._length_bytes - self.at_bytes, max(FIRST_BYTES, self.at_bytes * GROWTH))

    def eof_received(self) -> bool | None:
        """The client has ended its side, in the middle of its body."""
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._connection.resume_writing()
