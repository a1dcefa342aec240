"""Starts and watches what the soak runs against: engines in this process, a sidecar process for each way.

Rule: figures are read off /proc from outside; the sidecar runs as a user runs it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from tests.commands import command
from tests.engines import scripted
from tests.extremes.sizes import rss_bytes
from tests.faults.ways import BOOTSTRAP, DECODE, WAYS, answering
from tests.soak.traffic import Stand

# A leg that nobody waits for is closed within a loop turn; an idle connection to an engine after 4 s
# (sidecar/stages.py), one of a client that was aborted at once.
QUIET_S = 6.0
# After the last leg: a client that was aborted has its socket closed in the next turns of a busy loop.
SETTLED_S = 0.5
# What memory may grow by after the warm-up: allocators keep what a burst of 8 MiB answers needed.
GROWTH_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Holding:
    """What a process holds while nothing runs."""

    rss_bytes: int
    files: int


def holding(stand: Stand) -> Holding:
    """Of this way's sidecar."""
    pid = stand.sidecar.process.pid
    return Holding(rss_bytes(pid), len(os.listdir(f"/proc/{pid}/fd")))


@asynccontextmanager
async def standing(names: Sequence[str], directory: Path) -> AsyncIterator[list[Stand]]:
    """Run these ways."""
    async with AsyncExitStack() as stack:
        stands: list[Stand] = []
        for number, name in enumerate(names):
            way = WAYS[name]
            engines = {
                role: await stack.enter_async_context(scripted(answering(role)))
                for role in (DECODE, *way.roles)
            }
            environ = {"POD_IP": "127.0.0.1"}
            if BOOTSTRAP in engines:
                environ["MOONCAKE_BOOTSTRAP_PORT"] = str(engines[BOOTSTRAP].port)
            at = directory / str(number)
            at.mkdir()
            running = command(at, engines[DECODE].port, *way.flags, environ=environ)
            stand = Stand(name, await stack.enter_async_context(running), engines)
            stand.scripts()
            stands.append(stand)
        yield stands


async def quiet(stands: Sequence[Stand]) -> list[str]:
    """Wait until idle connections have expired; what is still open after QUIET_S, in words."""
    until_s = monotonic() + QUIET_S
    while (still := _open(stands)) and monotonic() < until_s:
        await asyncio.sleep(0.05)
    await asyncio.sleep(SETTLED_S)
    return still


def _open(stands: Sequence[Stand]) -> list[str]:
    return [
        f"{stand.name}: {engine.open} connections to the {role} engine are open, {unanswered} legs run"
        for stand in stands
        for role, engine in stand.engines.items()
        if (unanswered := sum(got.answered_s is None for got in engine.requests)) or engine.open
    ]


def forget_answered(stands: Sequence[Stand]) -> int:
    """Drop the engines' records of legs that have ended; how many those were."""
    count = 0
    for stand in stands:
        for engine in stand.engines.values():
            before = len(engine.requests)
            engine.requests[:] = [got for got in engine.requests if got.answered_s is None]
            count += before - len(engine.requests)
    return count
