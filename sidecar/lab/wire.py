"""The engines' own side protocol: framed messages over TCP, a listener that can vanish, a session that can be
kept.

Rule: one frame is two 4-byte big-endian lengths, a JSON head and a binary tail; a session is one question at
a time. This is not vLLM's wire (ZeroMQ and RDMA); it moves the same things between embedded engines only.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable

Head = dict[str, object]

MAX_HEAD_BYTES = 1 << 20
"""A head names an operation and a few numbers; more is not this protocol."""

MAX_TAIL_BYTES = 1 << 30
"""KV of the longest prompt that makes sense here, with room."""

_LENGTHS = struct.Struct("!II")


class WireError(ConnectionError):
    """The other side closed, or speaks something else."""


def frame(head: Head, tail: bytes = b"") -> bytes:
    """One message as bytes."""
    encoded = json.dumps(head).encode()
    return _LENGTHS.pack(len(encoded), len(tail)) + encoded + tail


async def read_frame(reader: asyncio.StreamReader) -> tuple[Head, bytes]:
    """The next message; raises WireError when there is none."""
    try:
        head_bytes, tail_bytes = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        if head_bytes > MAX_HEAD_BYTES or tail_bytes > MAX_TAIL_BYTES:
            raise WireError("not a frame of this protocol")
        head = json.loads(await reader.readexactly(head_bytes))
        tail = await reader.readexactly(tail_bytes)
    except (asyncio.IncompleteReadError, ValueError, OSError) as error:
        raise WireError(str(error)) from error
    if not isinstance(head, dict):
        raise WireError("the head is not an object")
    return head, tail


class Session:
    """One open connection to a peer, used for one question at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, host: str, port: int) -> Session:
        """Connects; raises OSError when nothing listens there."""
        return cls(*await asyncio.open_connection(host, port))

    async def ask(self, head: Head, tail: bytes = b"") -> tuple[Head, bytes]:
        """Sends one message and returns the answer; raises WireError when the peer is gone."""
        try:
            self._writer.write(frame(head, tail))
            return await read_frame(self._reader)
        except BaseException:
            self.drop()
            raise

    @property
    def usable(self) -> bool:
        """Neither side has closed, as far as is known."""
        return not (self._writer.is_closing() or self._reader.at_eof())

    def drop(self) -> None:
        """Closes at once."""
        self._writer.transport.abort()


Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Listener:
    """A TCP listener with all its connections; `converse` serves one, and ends when its connection does."""

    def __init__(self, converse: Conversation) -> None:
        self._converse = converse
        self._server: asyncio.Server | None = None
        self._conversations: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def open(self, host: str, port: int) -> int:
        """Listens and returns the port; raises OSError when the address is taken."""
        self._server = await asyncio.start_server(self._serve, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def drop(self) -> None:
        """Stops listening and resets every connection, as the end of a process does."""
        if self._server is not None:
            self._server.close()
        for writer in self._conversations.values():
            writer.transport.abort()

    async def close(self) -> None:
        """Drops, and waits until nothing of it runs."""
        tasks = list(self._conversations)
        self.drop()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._conversations[task] = writer
        try:
            await self._converse(reader, writer)
        except ConnectionError:
            pass  # The peer closed: how every conversation ends, also one that never said a word.
        finally:
            del self._conversations[task]
            writer.transport.abort()
