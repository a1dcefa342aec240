"""Waits until what an engine counts has caught up with an answer.

Rule: acts; bounded. An engine publishes what a step did with a later step: seen on vLLM 0.32 some tens of
milliseconds after the answer, and over a second on busy cores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

WITHIN_S = 2.0
"""Seen up to 1.5 s on busy cores."""
EVERY_S = 0.05
"""A look reads some 100 KB; answers of real models take longer."""

T = TypeVar("T")


async def settled(
    look: Callable[[], Awaitable[T]], of: Callable[[T], object], *, within_s: float | None = None
) -> T:
    """The first look of which `of` is true and equal to the look before, or the last one in time.

    `of` gives a counter that has to rise and stand, or whether something holds, which it has to twice.
    within_s: WITHIN_S if not given.
    """
    end_s = monotonic() + (WITHIN_S if within_s is None else within_s)
    before: object = None
    while True:
        seen = await look()
        value = of(seen)
        if (value and value == before) or monotonic() >= end_s:
            return seen
        before = value
        await asyncio.sleep(EVERY_S)
