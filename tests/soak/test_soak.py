"""The soak itself, for a few seconds: `make soak` runs it for minutes."""

from __future__ import annotations

from tests.soak.__main__ import soak


async def test_a_few_seconds_of_mixed_traffic_leave_nothing_unaccounted_for() -> None:
    assert await soak(4.0, seed=7, names=["nixlv2", "mooncake"]) == []
