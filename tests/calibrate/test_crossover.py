"""Where pulls begin to pay, and the threshold that follows."""

from __future__ import annotations

import pytest

from sidecar.calibrate.crossover import Crossover, Shape, crossover, recommended
from sidecar.calibrate.curves import Curve, Gain


def line(fixed_ms: float, ms_per_k: float, error_ms: float = 0.0) -> Curve:
    """A line whose band is two of its errors wide on both sides, everywhere."""
    return Curve((fixed_ms, ms_per_k), ((error_ms**2, 0.0), (0.0, 0.0)), 2.0)


def test_the_curves_cross_where_their_times_are_equal() -> None:
    # 10 k = 40 + 5 k at k = 8; the gain's error of 2.5 ms is half a thousand tokens, twice that the interval.
    found = crossover(Gain(line(0, 10, 2.5), line(40, 5)), 2048, 49152)
    assert found.shape is Shape.CROSSES
    assert found.tokens == pytest.approx(8000, rel=0.01)
    assert found.low == pytest.approx(7000, rel=0.01)
    assert found.high == pytest.approx(9000, rel=0.01)


def test_a_pull_that_wins_everywhere_crosses_nowhere() -> None:
    found = crossover(Gain(line(26, 24), line(25, 4)), 2048, 49152)
    assert found == Crossover(Shape.PULLS_WIN, 2048, 49152)


def test_a_gain_at_the_shortest_that_is_not_proven_is_a_crossing_under_it() -> None:
    found = crossover(Gain(line(0, 10, 2.5), line(15, 5)), 3200, 49152)
    assert (found.shape, found.tokens, found.low) == (Shape.CROSSES, None, None)
    assert found.high == pytest.approx(4000, rel=0.01)


def test_a_pull_that_loses_at_the_longest_never_pays() -> None:
    assert crossover(Gain(line(0, 4), line(10, 5)), 2048, 49152).shape is Shape.COMPUTING_WINS
    # Not even where it wins among the short ones: its bandwidth is too low.
    assert crossover(Gain(line(30, 4), line(0, 5)), 2048, 49152).shape is Shape.COMPUTING_WINS


def test_what_the_longest_does_not_prove_is_unclear() -> None:
    assert crossover(Gain(line(0, 5, 50), line(1, 5)), 2048, 49152).shape is Shape.UNCLEAR


@pytest.mark.parametrize(
    ("found", "headroom", "tokens"),
    [
        (Crossover(Shape.CROSSES, 2048, 49152, 8700, 8600, 8800.5), 1.0, 8816),
        (Crossover(Shape.CROSSES, 2048, 49152, 8700, 8600, 8800.5), 1.5, 13216),
        (Crossover(Shape.PULLS_WIN, 2048, 49152), 1.5, 2048),
        (Crossover(Shape.COMPUTING_WINS, 2048, 49152), 1.5, None),
        (Crossover(Shape.UNCLEAR, 2048, 49152), 1.5, None),
    ],
)
def test_the_threshold_is_above_what_is_proven_by_the_headroom_in_whole_blocks(
    found: Crossover, headroom: float, tokens: int | None
) -> None:
    assert recommended(found, headroom, 16) == tokens
