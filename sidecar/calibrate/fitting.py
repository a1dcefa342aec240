"""Fits a curve to measured times: weighted least squares, outliers down-weighted.

Rule: pure; the one module that needs numpy (`pip install 'sidecar[calibrate]'`).

Times spread in proportion to themselves (a busy machine slows everything by a share), so errors are taken as
relative. Single slow requests are normal; Huber's weights keep them from bending the curve.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sidecar.calibrate.curves import Curve, K

# Student's t for a two-sided 95 %, by degrees of freedom; beyond the table the normal distribution's.
_QUANTILES = (
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13,
    2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04,
)  # fmt: skip
_NORMAL = 1.96
# Huber's: errors beyond so many scaled median deviations count less (95 % efficient on normal errors).
_HUBER = 1.345
# From the median absolute deviation to a standard deviation, for normal errors.
_MAD_TO_DEVIATION = 1.4826
_ROUNDS = 20
# No timing over HTTP is truer than this share of itself: bands do not collapse on few and lucky points.
_LEAST_RELATIVE_ERROR = 0.002


def fitted(points: Sequence[tuple[int, float]], degree: int) -> Curve | None:
    """A polynomial of at most `degree` through (tokens, ms); None without two lengths and one point more.

    A curve that would bend downwards is fitted as a line: no engine computes late tokens faster.
    """
    lengths = len({tokens for tokens, _ in points})
    degree = min(degree, lengths - 1, len(points) - 2)
    if degree < 1:
        return None
    curve = _weighted(points, degree)
    if degree > 1 and curve.coefficients[-1] < 0:
        return _weighted(points, 1)
    return curve


def _weighted(points: Sequence[tuple[int, float]], degree: int) -> Curve:
    k = np.array([tokens / K for tokens, _ in points])
    ms = np.array([time_ms for _, time_ms in points])
    # Dividing every row by its time makes errors relative.
    rows, ones = np.vander(k, degree + 1, increasing=True) / ms[:, None], np.ones(len(points))
    weights = ones
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        solution = np.linalg.lstsq(rows * root[:, None], root, rcond=None)[0]
        errors = ones - rows @ solution
        scale = max(_MAD_TO_DEVIATION * float(np.median(np.abs(errors))), _LEAST_RELATIVE_ERROR)
        weights = np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(errors), 1e-12))
    freedom = len(points) - degree - 1
    variance = max(float(np.sum(weights * errors**2)) / freedom, _LEAST_RELATIVE_ERROR**2)
    covariance = variance * np.linalg.pinv(rows.T @ (rows * weights[:, None]))
    quantile = _QUANTILES[freedom - 1] if freedom <= len(_QUANTILES) else _NORMAL
    return Curve(
        tuple(float(c) for c in solution),
        tuple(tuple(float(v) for v in row) for row in covariance),
        quantile,
    )
