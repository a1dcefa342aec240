"""Simulated durations."""

from __future__ import annotations

import asyncio
from time import monotonic, sleep

import pytest

from sidecar.lab.clock import Clock


def _work() -> None:
    sleep(0.15)


async def _took_s(clock: Clock, seconds: float, since_s: float | None) -> float:
    began_s = monotonic()
    await clock.sleep(seconds, since_s=since_s)
    return monotonic() - began_s


async def test_a_duration_is_scaled() -> None:
    assert 0.09 < await _took_s(Clock(0.1), 1.0, None) < 0.9


async def test_work_done_since_it_began_is_a_part_of_it() -> None:
    clock = Clock(1.0)
    began_s = clock.now_s
    _work()
    assert 0.05 < await _took_s(clock, 0.25, began_s) < 0.2


async def test_work_that_took_longer_is_not_made_up_for() -> None:
    clock = Clock(1.0)
    began_s = clock.now_s - 10
    assert await _took_s(clock, 0.25, began_s) < 0.2
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await clock.sleep(0.25)
