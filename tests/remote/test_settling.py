"""What engines count is looked at until it stands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sidecar.remote.settling import settled


def looks(values: list[float]) -> Callable[[], Awaitable[float]]:
    async def look() -> float:
        return values.pop(0) if len(values) > 1 else values[0]

    return look


async def test_a_counter_that_has_risen_is_taken_once_it_stands() -> None:
    assert await settled(looks([0.0, 0.0, 5.0, 6.0, 6.0, 7.0]), lambda now: now) == 6.0


async def test_a_condition_has_to_hold_of_two_looks() -> None:
    assert await settled(looks([0.0, 5.0, 6.0, 7.0]), lambda now: now >= 5) == 6.0


async def test_what_never_stands_is_given_as_it_is_when_the_time_is_up() -> None:
    assert await settled(looks([0.0, 0.0]), lambda now: now, within_s=0.12) == 0.0
