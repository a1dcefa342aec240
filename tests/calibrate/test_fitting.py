"""Curves are found again through their spread."""

from __future__ import annotations

import pytest

from sidecar.calibrate.fitting import fitted
from sidecar.lab.latency import PROFILES
from tests.calibrate.made import SPREAD

LENGTHS = (2048, 4096, 8192, 16384, 32768)
GLM = PROFILES["glm"]


def test_a_quadratic_is_found_and_its_band_holds_the_truth() -> None:
    points = [(n, GLM.recompute_ms(n) * share) for n in LENGTHS for share in SPREAD]
    curve = fitted(points, 2)
    assert curve is not None
    assert curve.coefficients == pytest.approx((30.0, 20.0, 0.25), rel=0.05)
    for n in (2048, 5000, 8700, 32768):
        assert abs(curve.at(n) - GLM.recompute_ms(n)) <= curve.half_width(n)


def test_one_slow_request_bends_nothing() -> None:
    points = [(n, GLM.pull_ms(n) * share) for n in LENGTHS for share in SPREAD]
    slow = [(32768, GLM.pull_ms(32768) * 4)]
    curve, same = fitted(points, 1), fitted([*points, *slow], 1)
    assert curve is not None
    assert same is not None
    assert same.coefficients == pytest.approx(curve.coefficients, rel=0.02)


def test_more_spread_makes_a_wider_band() -> None:
    def width(factor: float) -> float:
        points = [(n, GLM.pull_ms(n) * (1 + factor * (share - 1))) for n in LENGTHS for share in SPREAD]
        curve = fitted(points, 1)
        assert curve is not None
        return curve.half_width(8192)

    assert width(3) == pytest.approx(3 * width(1), rel=0.2)


def test_what_would_bend_downwards_is_a_line() -> None:
    curve = fitted([(n, 10.0 + (n / 1000) ** 0.5 * share) for n in LENGTHS for share in SPREAD], 2)
    assert curve is not None
    assert len(curve.coefficients) == 2


@pytest.mark.parametrize("points", [[], [(2048, 5.0)] * 9, [(2048, 5.0), (4096, 6.0)]])
def test_too_little_is_no_curve(points: list[tuple[int, float]]) -> None:
    assert fitted(points, 2) is None


def test_two_lengths_give_a_line() -> None:
    curve = fitted([(1000, 2.0), (1000, 2.0), (2000, 3.0), (2000, 3.0)], 2)
    assert curve is not None
    assert curve.coefficients == pytest.approx((1.0, 1.0))
