"""Keeps connections that wait for their next request, newest first, and drops them before the engine does.

Rule: no cap on connections, a cap on idle ones, and one timer for all of them.
"""

import asyncio

import httpx

from sidecar.transport.connection import Connection
from sidecar.transport.messages import Key


class Pool:
    """The idle connections by where they lead, and all the open ones.

    idle_expiry_s is how long one may wait; it must be under the engine's own keep-alive time.
    """

    __slots__ = ("_idle", "_idle_expiry_s", "_loop", "_max_idle_per_host", "_open", "_timer", "closed")

    def __init__(self, idle_expiry_s: float, max_idle_per_host: int) -> None:
        self.closed = False
        self._idle_expiry_s = idle_expiry_s
        self._max_idle_per_host = max_idle_per_host
        # Per key in the order of becoming idle, with the loop time of that.
        self._idle: dict[Key, dict[Connection, float]] = {}
        self._open: dict[Connection, Key] = {}
        self._timer: asyncio.TimerHandle | None = None
        # The running one, known from the first connection on: CPython 3.11 asks the kernel at each look-up.
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def standing(self) -> tuple[int, int]:
        """How many connections carry a request and how many wait for one."""
        idle = sum(map(len, self._idle.values()))
        return len(self._open) - idle, idle

    def add(self, connection: Connection, key: Key) -> None:
        """A new connection, in use. It must leave by lost()."""
        self._open[connection] = key
        self._loop = self._loop or asyncio.get_running_loop()

    def take(self, key: Key) -> Connection | None:
        """The connection that became idle last, or None."""
        idle = self._idle.get(key)
        if not idle or self._loop is None:
            return None
        oldest_s = self._loop.time() - self._idle_expiry_s
        while idle:
            connection, since_s = idle.popitem()
            if since_s >= oldest_s and connection.usable:
                return connection
            connection.abort()
        return None

    def put(self, connection: Connection) -> None:
        """A connection whose answer is complete."""
        key, loop = self._open.get(connection), self._loop
        if key is None or loop is None:
            connection.abort()  # lost, or the pool is closed
            return
        idle = self._idle.get(key)
        if idle is None:
            idle = self._idle[key] = {}
        if len(idle) >= self._max_idle_per_host:
            connection.abort()
            return
        idle[connection] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._idle_expiry_s, self._expire)

    def lost(self, connection: Connection) -> None:
        """A connection that is closed."""
        self._open.pop(connection, None)

    def close(self) -> None:
        """Close every connection at once; the answers being read end with httpx.ReadError."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._idle.clear()
        for connection in tuple(self._open):
            connection.shut(httpx.ReadError("the transport was closed"))
        self._open.clear()

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        oldest_s = loop.time() - self._idle_expiry_s
        first_s = None
        for key, idle in list(self._idle.items()):
            while idle:
                connection, since_s = next(iter(idle.items()))
                if since_s > oldest_s:
                    first_s = since_s if first_s is None else min(first_s, since_s)
                    break
                del idle[connection]
                connection.abort()
            if not idle:
                del self._idle[key]
        self._timer = None
        if first_s is not None:
            self._timer = loop.call_at(first_s + self._idle_expiry_s, self._expire)
