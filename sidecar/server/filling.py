"""Receives the rest of one request's body straight into its place: no piece is made, copied or joined.

Rule: takes exactly the announced bytes off the socket, so that what follows them is the connection's again;
everything else that the socket tells goes on to the connection.
"""

import asyncio
from collections.abc import Callable

FIRST_BYTES = 65536
"""Bytes made room for when little has come; bodies with no more than that left are not worth a protocol."""

GROWTH = 8
"""How many times as much as has come is made room for: a body of 400 KB gets its place at once, and a client
that announces much and sends little holds no memory for it."""


class Filling(asyncio.BufferedProtocol):
    """The socket's protocol until the body is `place`, whole; `filled` is called then. at_bytes: came."""

    def __init__(
        self, connection: asyncio.Protocol, held: bytes, length_bytes: int, filled: Callable[[], None]
    ) -> None:
        self.place = bytearray(held)
        self._connection = connection
        self._length_bytes = length_bytes
        self._filled = filled
        self.at_bytes = len(held)
        self._view = memoryview(self.place)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        if self.at_bytes == len(
            self.place
        ):  # not in buffer_updated: there the loop still has the last buffer
            self._view.release()
            left_bytes = self._length_bytes - self.at_bytes
            self.place.extend(bytes(min(left_bytes, max(FIRST_BYTES, self.at_bytes * GROWTH))))
            self._view = memoryview(self.place)
        return self._view[self.at_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        self.at_bytes += nbytes
        if self.at_bytes == self._length_bytes:
            self._filled()

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
