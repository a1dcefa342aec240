"""Writes log lines in the background, so that a reader who stands still holds nobody up.

Rule: acts. Lines leave whole: several processes share a pipe, and what is longer than PIPE_BUF may have
another's bytes within it (pipe(7)).
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic

WAITING_BYTES = 1024 * 1024
"""Of lines that wait for their reader: what a busy sidecar has to tell in a second."""


class Background:
    """A descriptor that is written by a thread of its own, which begins with what a running loop writes.

    Without a loop, in the parent of several processes above all, which must be able to fork, a write is made
    at once if the reader has room for it, and is lost otherwise. lost: the line that tells how many are.
    """

    def __init__(self, descriptor: int, lost: Callable[[int], bytes]) -> None:
        self._descriptor = descriptor
        self._lost = lost
        self._lost_lines = 0
        # With each how many lines are lost if it cannot be written: its own, and those that it tells of.
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._maker = os.getpid()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def write(self, lines: bytes) -> None:
        """Take whole lines. Raises OSError where they are written at once and cannot be."""
        with self._changed:
            if self._thread is None and not _in_loop():
                self._write_now(lines)
                return
            if self._thread is None:
                if os.getpid() != self._maker:
                    self._lost_lines = 0  # the parent's
                self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
            if self._waiting and self._waiting_bytes + len(lines) > WAITING_BYTES:
                self._lost_lines += lines.count(b"\n")
                return
            self._append(lines)
            self._changed.notify_all()

    def flush(self) -> None:
        """Nothing is kept here that could leave sooner."""

    def drain(self, within_s: float) -> None:
        """Wait until all is written, but no longer than that."""
        end_s = monotonic() + within_s
        with self._changed:
            while self._waiting and (left_s := end_s - monotonic()) > 0:
                self._changed.wait(left_s)

    def _write_now(self, lines: bytes) -> None:
        if not self._poll.poll(0):
            self._lost_lines += lines.count(b"\n")
            return
        told = self._lost(self._lost_lines) if self._lost_lines else b""
        self._write_whole(told + lines)
        self._lost_lines = 0

    def _append(self, lines: bytes) -> None:
        """Put them last, behind the line that tells how many are lost there."""
        at_stake = self._lost_lines + lines.count(b"\n")
        told = self._lost(self._lost_lines) if self._lost_lines else b""
        self._lost_lines = 0
        self._waiting.append((told + lines, at_stake))
        self._waiting_bytes += len(told) + len(lines)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                lines, at_stake = self._waiting[0]
            failed = self._fails(lines)
            with self._changed:
                self._waiting.popleft()
                self._waiting_bytes -= len(lines)
                self._lost_lines += at_stake if failed else 0
                if not failed and not self._waiting and self._lost_lines:
                    self._append(b"")
                self._changed.notify_all()

    def _fails(self, lines: bytes) -> bool:
        """Whether they cannot be written; where else could that be told?"""
        try:
            self._write_whole(lines)
        except OSError:
            return True
        return False

    def _write_whole(self, lines: bytes) -> None:
        for block in _blocks(lines):
            left = memoryview(block)
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:  # whoever else has the descriptor has set O_NONBLOCK
                    self._poll.poll()


def _blocks(lines: bytes) -> Iterator[bytes]:
    """Whole lines, as many as fit into PIPE_BUF, or one that is longer."""
    at = 0
    while at < len(lines):
        end = lines.rfind(b"\n", at, at + select.PIPE_BUF) + 1 or lines.find(b"\n", at) + 1 or len(lines)
        yield lines[at:end]
        at = end


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
