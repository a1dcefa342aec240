"""Reads and writes durations in Go's spelling (Go `time.ParseDuration`, `200ms`, `1m30s`, `1.5h`).

Rule: a duration is a float of seconds everywhere else; only this module knows the spelling.
"""

import re
from decimal import Decimal

# Units of Go's time.ParseDuration in nanoseconds, largest first; both code points for micro are legal there.
_NANOSECONDS = {
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "\u00b5s": 1_000,
    "\u03bcs": 1_000,
    "ns": 1,
}
_PIECE = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)", re.ASCII)
_WHOLE = re.compile(rf"(?:{_PIECE.pattern})+", re.ASCII)
_NUMBER = re.compile(r"[0-9]+\.?[0-9]*|\.[0-9]+", re.ASCII)
# A Go Duration is a signed 64-bit count of nanoseconds, about 292 years.
_LONGEST_NS = 2**63 - 1
# Longer texts are no durations; the bound keeps the decimal arithmetic exact and cheap.
_LONGEST_TEXT = 64


def parse_duration(text: str) -> float:
    """Return the seconds that `text` says.

    Raises ValueError with the reason: no unit, negative, too long, or no duration at all.
    """
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    if unsigned == "0":
        return 0.0
    if len(text) <= _LONGEST_TEXT and _NUMBER.fullmatch(unsigned):
        raise ValueError(f"{text!r} has no unit (one of ns, us, ms, s, m, h)")
    if len(text) > _LONGEST_TEXT or not _WHOLE.fullmatch(unsigned):
        raise ValueError(f"{text!r} is not a duration such as 200ms, 10s or 1m30s")
    total_ns = sum(Decimal(number) * _NANOSECONDS[unit] for number, unit in _PIECE.findall(unsigned))
    if text.startswith("-") and total_ns:
        raise ValueError(f"{text!r} is negative")
    if total_ns > _LONGEST_NS:
        raise ValueError(f"{text!r} is longer than Go's longest duration (292 years)")
    return float(total_ns / _NANOSECONDS["s"])


def format_duration(duration_s: float) -> str:
    """Return the shortest spelling in whole units: 0.2 is ``200ms``, 90 is ``1m30s``, 0 is ``0``."""
    left_ns = round(duration_s * _NANOSECONDS["s"])
    if left_ns == 0:
        return "0"
    spelled = []
    for unit in ("h", "m", "s", "ms", "us", "ns"):
        count, left_ns = divmod(left_ns, _NANOSECONDS[unit])
        if count:
            spelled.append(f"{count}{unit}")
    return "".join(spelled)
