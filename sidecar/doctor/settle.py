"""Waits until a counter has risen and stands.

Rule: acts; bounded. An engine publishes what a step did with a later step: seen on vLLM 0.32 some tens of
milliseconds after the answer, and over a second on busy cores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

# Seen up to 1.5 s on busy cores.
WITHIN_S = 2.0
# So often it is looked at, in seconds; what stands for two looks has settled.
_EVERY_S = 0.1

T = TypeVar("T")


async def steady(
    look: Callable[[], Awaitable[T]], of: Callable[[T], float | None], within_s: float | None = None
) -> T:
    """The first look at which `of` is above zero and as it was the time before, or the last one in time.

    within_s: WITHIN_S if not given.
    """
    end_s, before = monotonic() + (WITHIN_S if within_s is None else within_s), 0.0
    while True:
        seen = await look()
        value = of(seen) or 0.0
        if (value and value == before) or monotonic() >= end_s:
            return seen
        before = value
        await asyncio.sleep(_EVERY_S)
