"""Writes to a descriptor that others share what it takes at once, and never waits for its reader.

Rule: acts. O_NONBLOCK would be set for everybody who has the descriptor (open(2)): a shell, other processes.
"""

from __future__ import annotations

import io
import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

# A pipe that can be written has a page to spare, and takes so much without waiting (Linux fs/pipe.c,
# pipe_write); sockets and terminals that can be written have more.
_AT_ONCE_BYTES = select.PIPE_BUF


class Nonblocking(io.RawIOBase):
    """The descriptor as a stream without a buffer. It is not closed with this."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def fileno(self) -> int:
        """See io.IOBase.fileno."""
        return self._descriptor

    def writable(self) -> bool:
        """See io.IOBase.writable."""
        return True

    def write(self, content: Buffer, /) -> int:
        """How many bytes were taken: none where the reader does not read. Raises OSError."""
        left = memoryview(content)
        while left and self._poll.poll(0):
            left = left[os.write(self._descriptor, left[:_AT_ONCE_BYTES]) :]
        return len(memoryview(content)) - len(left)
