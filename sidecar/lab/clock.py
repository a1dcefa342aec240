"""The engine's time: every simulated duration passes through one clock, which scales it.

Rule: callers speak of the durations of a real engine in seconds; nobody else multiplies by the scale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn


class Clock:
    """Scales durations by `scale`, a positive factor."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    @property
    def now_s(self) -> float:
        """Simulated seconds since some moment in the past."""
        return asyncio.get_running_loop().time() / self.scale

    async def sleep(self, seconds: float, *, since_s: float | None = None) -> None:
        """Waits for a simulated duration; cancelling the task ends it at once.

        since_s: the moment of `now_s` at which it began: what was really done since is a part of it.
        """
        done_s = 0.0 if since_s is None else self.now_s - since_s
        await asyncio.sleep(max(0.0, seconds - done_s) * self.scale)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        """`asyncio.timeout` of a simulated duration."""
        return asyncio.timeout(seconds * self.scale)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Calls back after a simulated duration."""
        return asyncio.get_running_loop().call_later(seconds * self.scale, callback)


async def for_ever() -> NoReturn:
    """Until the request is cancelled."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nothing completes it")
