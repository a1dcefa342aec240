"""Waits until an engine's counters have caught up with an answer.

Rule: acts; bounded. An engine publishes what a step did with a later step: seen on vLLM 0.32 some tens of
milliseconds after the answer, and over a second on busy cores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from sidecar.engine_counters import Counters

# Seen up to 1.5 s on busy cores.
WITHIN_S = 5.0
_EVERY_S = 0.05


async def settled(
    counters: Callable[[], Awaitable[Counters]],
    enough: Callable[[Counters], bool],
    *,
    within_s: float = WITHIN_S,
) -> Counters:
    """The counters once `enough` holds of them and one more look, or as they are after `within_s`."""
    end_s = monotonic() + within_s
    seen = False
    while True:
        now = await counters()
        if seen or monotonic() >= end_s:
            return now
        seen = enough(now)
        await asyncio.sleep(_EVERY_S)
