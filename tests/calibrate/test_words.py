"""Numbers as a person reads them."""

from __future__ import annotations

import pytest

from sidecar.calibrate.words import lasting, millis, rate, several, size


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1020000, "1.02 MB"), (9.4e9, "9.4 GB"), (2e13, "20 TB")]
)
def test_bytes(count: float, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "under 1 s"),
        (42, "42 s"),
        (59.7, "1 min"),
        (200, "3 min 20 s"),
        (3599.8, "1 h"),
        (3900, "1 h 5 min"),
        (7200, "2 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert lasting(seconds) == text


@pytest.mark.parametrize(
    ("ms", "text"), [(4.213, "4.21"), (42.13, "42.1"), (-421.3, "-421"), (4210.4, "4,210")]
)
def test_milliseconds(ms: float, text: str) -> None:
    assert millis(ms) == text


def test_rates_and_counts() -> None:
    assert (rate(24.61), rate(0.00711)) == ("24.6 GB/s", "7.11 MB/s")
    assert (several(1, "leg"), several(1200, "leg"), several(2, "leg", "pairs")) == (
        "1 leg",
        "1,200 legs",
        "2 pairs",
    )
