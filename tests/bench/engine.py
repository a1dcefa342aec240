"""A scripted engine for the benchmark: bare sockets, as little work per event as Python allows.

Rule: it only has to be cheap and steady. Bodies are counted, not kept; what an answer depends on is looked
for in their first and last KiB. It runs as several processes, because one alone would send its events in
bursts, which cost a proxy half of what they cost apart. Prints one JSON line with its ports, and ends when
its standard input does.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import select
import socket
import sys
from collections import deque
from time import monotonic

from tests.bench.answers import END, FIRST, LAST_CHUNK, NEXT, WHOLE, json_answer

# A KV source that is not the engine itself: any address of 127.0.0.0/8 is this machine (RFC 6890).
SOURCE_HOST = "127.9.8.7"

# As many as the load has: with eight of each, figures are about those of a thread per connection.
WORKERS = 8

# What is looked at of a body's two ends: every field but the prompt fits in.
_EDGE_BYTES = 1024
# One read. Larger than what a socket of the loopback interface usually holds, so that a body takes few.
_READ_BYTES = 1 << 20
_BACKLOG = 4096
# A proxy that does not read for so long is broken; its connection is dropped.
_FULL_SOCKET_S = 5.0

_STREAM = re.compile(rb'"stream": ?true')
_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')
_GAP = re.compile(rb'"gap_ms": ?(\d+)')
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)


class Connection:
    """One connection. start and last: the ends of the body being read, left_bytes: what is missing of it.

    left_events and gap_s: of the stream being sent.
    """

    __slots__ = (
        "chunked",
        "gap_s",
        "head",
        "in_body",
        "last",
        "left_bytes",
        "left_events",
        "sock",
        "start",
    )

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.left_events = 0
        self.gap_s = 0.0
        self.expect()

    def expect(self) -> None:
        """Be ready for the next request."""
        self.head = self.start = self.last = b""
        self.in_body = self.chunked = False
        self.left_bytes = 0

    def take(self, view: memoryview) -> bool:
        """Read on; whether the request is complete."""
        if not self.in_body:
            self.head += view
            end = self.head.find(b"\r\n\r\n") + 4
            if end < 4:
                return False
            self.in_body = True
            length = _LENGTH.search(self.head, 0, end)
            self.left_bytes = int(length[1]) if length else 0
            self.chunked = length is None and _CHUNKED.search(self.head, 0, end) is not None
            view, self.head = memoryview(self.head)[end:], self.head[:end]
        if len(self.start) < _EDGE_BYTES:
            self.start += view[:_EDGE_BYTES]
        self.last = (self.last + bytes(view[-_EDGE_BYTES:]))[-_EDGE_BYTES:]
        self.left_bytes -= len(view)
        return self.last.endswith(LAST_CHUNK) if self.chunked else self.left_bytes <= 0

    def send(self, piece: bytes) -> None:
        """Send all of it. Everybody here reads at once: a full socket is worth waiting for, but not long."""
        sent = self.sock.send(piece)
        if sent < len(piece):
            self.sock.settimeout(_FULL_SOCKET_S)
            self.sock.sendall(piece[sent:])
            self.sock.setblocking(False)


class Worker:
    """One process of the engine. counts: requests and pulls of each worker, shared by all of them."""

    def __init__(self, number: int, listener: socket.socket, counts: memoryview) -> None:
        self._number = number
        self._listener = listener
        self._counts = counts
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        # Per gap the streams with the time of their next event: each queue is in the order of time.
        self._due: dict[float, deque[tuple[float, Connection]]] = {}
        self._buffer = memoryview(bytearray(_READ_BYTES))

    def run(self, p2p: socket.socket) -> None:
        """Serve until standard input ends; whoever connects to the P2P port is accepted and left."""
        listener = self._listener.fileno()
        for fd in (sys.stdin.fileno(), listener, p2p.fileno()):
            self._epoll.register(fd, select.EPOLLIN)
        while True:
            for fd, _ in self._ready():
                connection = self._connections.get(fd)
                if connection is not None:
                    self._read(connection)
                elif fd == listener:
                    self._accept()
                elif fd == p2p.fileno():
                    _leave(p2p)
                else:
                    return
            self._send_due()

    def _ready(self) -> list[tuple[int, int]]:
        """What can be read, waiting no longer than to the next event.

        Waits with select, whose time-out has microseconds where epoll's has milliseconds.
        """
        next_s = min((queue[0][0] for queue in self._due.values() if queue), default=None)
        wait_s = None if next_s is None else max(0.0, next_s - monotonic())
        select.select([self._epoll.fileno()], [], [], wait_s)
        return self._epoll.poll(0)

    def _accept(self) -> None:
        try:
            sock = self._listener.accept()[0]
        except BlockingIOError:
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        self._connections[sock.fileno()] = Connection(sock)
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _read(self, connection: Connection) -> None:
        try:
            count = connection.sock.recv_into(self._buffer)
        except ConnectionError:
            count = 0
        if not count:
            self._drop(connection)
        elif connection.take(self._buffer[:count]):
            self._answer(connection)
            connection.expect()

    def _drop(self, connection: Connection) -> None:
        connection.left_events = 0
        self._connections.pop(connection.sock.fileno(), None)
        connection.sock.close()

    def _answer(self, connection: Connection) -> None:
        if connection.head.startswith(b"GET "):
            counts = {"requests": sum(self._counts[::2]), "pulls": sum(self._counts[1::2])}
            self._send(connection, json_answer(json.dumps(counts).encode()))
            return
        self._counts[2 * self._number] += 1
        edges = connection.start + connection.last
        self._counts[2 * self._number + 1] += b'"remote_kv_source"' in edges
        if not _STREAM.search(edges):
            self._send(connection, WHOLE)
            return
        tokens, gap = _TOKENS.search(edges), _GAP.search(edges)
        connection.left_events = int(tokens[1]) if tokens else 64
        connection.gap_s = int(gap[1]) / 1000 if gap else 0.005
        self._send_event(connection, FIRST)

    def _send_due(self) -> None:
        now_s = monotonic()
        for queue in self._due.values():
            while queue and queue[0][0] <= now_s:
                connection = queue.popleft()[1]
                if connection.left_events:
                    self._send_event(connection, NEXT)

    def _send_event(self, connection: Connection, event: bytes) -> None:
        """Send one event and note when the next is due: the first at once, a late one delays the rest."""
        connection.left_events -= 1
        if connection.left_events <= 0:
            self._send(connection, event + END)
            return
        if self._send(connection, event):
            queue = self._due.setdefault(connection.gap_s, deque())
            queue.append((monotonic() + connection.gap_s, connection))

    def _send(self, connection: Connection, piece: bytes) -> bool:
        try:
            connection.send(piece)
        except OSError:  # gone, or full
            self._drop(connection)
            return False
        return True


def _leave(p2p: socket.socket) -> None:
    try:
        p2p.accept()[0].close()
    except BlockingIOError:
        return  # another worker was faster


def _listening(host: str, port: int = 0) -> socket.socket:
    listener = socket.create_server((host, port), backlog=_BACKLOG, reuse_port=True)
    listener.setblocking(False)
    return listener


def main() -> None:
    """Open the ports, tell them, and serve in WORKERS processes."""
    p2p = _listening(SOURCE_HOST)
    listeners = [_listening("127.0.0.1")]
    port = listeners[0].getsockname()[1]
    # The kernel spreads connections over listeners of the same port (SO_REUSEPORT, socket(7)).
    listeners += [_listening("127.0.0.1", port) for _ in range(WORKERS - 1)]
    counts = memoryview(mmap.mmap(-1, 16 * WORKERS)).cast("Q")
    sys.stdout.write(json.dumps({"port": port, "p2p_port": p2p.getsockname()[1]}) + "\n")
    sys.stdout.flush()
    number = next((number for number in range(1, WORKERS) if os.fork() == 0), 0)
    Worker(number, listeners[number], counts).run(p2p)


if __name__ == "__main__":
    main()
