"""Fails a test that leaves something behind: a task, a socket or a file that was not there before.

Rule: whatever may end a moment later gets that moment; what is still there then is named in the failure.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

# A socket is closed in a later turn of the loop, an engine's end of it once the engine has seen that.
SETTLING_S = 3.0


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds at one moment: its files by what they are, and its loop's unfinished tasks."""

    files: Counter[str]
    tasks: frozenset[asyncio.Task[Any]]

    def beyond(self, before: Held) -> list[str]:
        """What is held now and was not then, in words."""
        files = [f"file {name}" for name in (self.files - before.files).elements()]
        return [*files, *(f"task {task!r}" for task in self.tasks - before.tasks)]


def held() -> Held:
    """What this process and the running loop hold now."""
    return Held(Counter(_open_files()), frozenset(task for task in asyncio.all_tasks() if not task.done()))


async def settled(before: Held, within_s: float = SETTLING_S) -> None:
    """Wait until no more is held than before. Raises AssertionError that names what is."""
    until_s = monotonic() + within_s
    while beyond := held().beyond(before):
        assert monotonic() < until_s, f"left behind: {beyond}"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Fail unless everything that the block opens or starts is gone soon after it."""
    before = held()
    yield
    await settled(before)


def _open_files() -> list[str]:
    """What each descriptor is: a path, or the kind and number of a socket or pipe."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the descriptor that listed the directory
            continue
    return names
