"""Sets pulls aside whose bytes are not those of their tokens, by what the other pulls moved.

Rule: pure. Counters are an engine's, not a request's: what others pull meanwhile is counted along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median_low

from sidecar.calibrate.verdicts import Measured, Verdict

MOST_APART = 0.1
"""Of the bytes of a token. All pulls of a pair move the same KV; engines that leave a last chunk away leave
away its tokens too."""


def agreed(warm: Sequence[Measured], measured: Sequence[Measured]) -> tuple[list[Measured], list[Measured]]:
    """Both, the pulls that moved judged again by each other."""
    usual = _usual([one for one in (*warm, *measured) if one.verdict is Verdict.MOVED])
    return [_judged(one, usual) for one in warm], [_judged(one, usual) for one in measured]


def bytes_per_token(one: Measured) -> float:
    """Of a pull, by the tokens that the engine counted, where it does."""
    return (one.rise.pulled_bytes or 0.0) / (one.rise.pulled_tokens or one.prefix_tokens)


def _usual(moved: Sequence[Measured]) -> Mapping[int, float]:
    """Bytes per token by the length asked for: the median of the length, the lower one where there are two.

    No length is given more than shorter ones: layers with a sliding window move a fixed part of any prefix,
    so that longer ones have fewer bytes per token, and never more. (Where an engine does not count tokens, a
    last chunk may be missing from any length: nothing is told by the others.)
    """
    usual: dict[int, float] = {}
    least = float("inf")
    for length in sorted({one.leg.prefix_tokens for one in moved}):
        mine = [one for one in moved if one.leg.prefix_tokens == length]
        usual[length] = median_low(bytes_per_token(one) for one in mine)
        if all(one.rise.pulled_tokens for one in mine):
            usual[length] = least = min(least, usual[length])
    return usual


def _judged(one: Measured, usual: Mapping[int, float]) -> Measured:
    if one.verdict is not Verdict.MOVED:
        return one
    found, other = bytes_per_token(one), usual[one.leg.prefix_tokens]
    if found > other * (1 + MOST_APART):
        reason = (
            f"{found:,.0f} bytes came per token where other pulls took {other:,.0f}: others pulled meanwhile"
        )
        return replace(one, verdict=Verdict.CONTAMINATED, reason=reason)
    if found < other * (1 - MOST_APART):
        reason = f"{found:,.0f} bytes came per token where other pulls took {other:,.0f}"
        return replace(one, verdict=Verdict.PARTIAL, reason=reason)
    return one
