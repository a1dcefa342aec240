"""Keeps both engines busy while legs are timed.

Rule: acts; bounded: so many requests at a time and no more, all of them cancelled when the block ends. Their
prompts are fresh, so that none of them finds a block and none is pulled.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sidecar.calibrate.tokens import Prompts
from sidecar.remote import Remote, RemoteError

ANSWER_TOKENS = 64
"""Of a background request: it decodes for a while, as users' requests do."""
# An engine that refuses is not asked in a tight loop.
_PAUSE_S = 0.5


@dataclass(slots=True)
class Load:
    """What the background has done."""

    answered: int = 0
    failed: int = 0


@asynccontextmanager
async def loaded(
    engines: Sequence[Remote], model: str, prompts: Prompts, *, at_once: int, tokens: int
) -> AsyncIterator[Load]:
    """Run `at_once` requests of so many tokens at a time on each engine."""
    load = Load()
    # Their prompts have numbers that no leg has.
    numbers = itertools.count(1_000_000)
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(_repeat(engine, model, (prompts, numbers, tokens), load))
            for engine in engines
            for _ in range(at_once)
        ]
        try:
            yield load
        finally:
            for task in running:
                task.cancel()


async def _repeat(engine: Remote, model: str, source: tuple[Prompts, Iterator[int], int], load: Load) -> None:
    prompts, numbers, tokens = source
    while True:
        try:
            await engine.complete(model, prompts.make(next(numbers), tokens), max_tokens=ANSWER_TOKENS)
            load.answered += 1
        except RemoteError:
            load.failed += 1
            await asyncio.sleep(_PAUSE_S)
