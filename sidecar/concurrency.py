"""Counts the exchanges that run, and refuses those beyond the most that may.

Rule: acts at once: nothing waits here, for a queue in front of an engine only hides that it is full.
"""

from __future__ import annotations

from types import TracebackType

from sidecar.errors import AtCapacity


class Concurrency:
    """`--max-concurrent-requests`, 0 without a limit. Enter it around an exchange: raises AtCapacity."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.running = 0

    def __enter__(self) -> None:
        if self._most and self.running >= self._most:
            raise AtCapacity(self._most)
        self.running += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.running -= 1
