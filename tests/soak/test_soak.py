"""The soak itself, for a few seconds: `make soak` runs it for minutes."""

from __future__ import annotations

from tests.soak.__main__ import soak

# A second is too short a warm-up to tell what memory is kept: half a minute of huge answers is.
GROWTH_BYTES = 256 * 1024 * 1024


async def test_a_few_seconds_of_mixed_traffic_leave_nothing_unaccounted_for() -> None:
    assert await soak(4.0, seed=7, names=["nixlv2", "mooncake"], growth_bytes=GROWTH_BYTES) == []
