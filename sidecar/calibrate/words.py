"""Numbers as a person reads them.

Rule: pure; one spelling for each quantity, in every output.
"""

from __future__ import annotations

_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"))


def size(count: float) -> str:
    """Bytes, in powers of ten as networks count them: `1.02 MB`."""
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} B"


def lasting(seconds: float) -> str:
    """A duration: `under 1 s`, `42 s`, `3 min 20 s`, `1 h 5 min`."""
    if seconds < 1:
        return "under 1 s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes + round(rest / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def millis(ms: float) -> str:
    """Milliseconds, to three digits or whole ones: `4.21`, `42.1`, `421`, `4,210`."""
    if abs(ms) >= 100:
        return f"{ms:,.0f}"
    return f"{ms:.1f}" if abs(ms) >= 10 else f"{ms:.2f}"


def rate(gb_per_s: float) -> str:
    """Gigabytes per second."""
    return f"{gb_per_s:.3g} GB/s" if gb_per_s >= 0.01 else f"{gb_per_s * 1000:.3g} MB/s"


def several(count: int, one: str, more: str | None = None) -> str:
    """`1 pull`, `2 pulls`."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"
