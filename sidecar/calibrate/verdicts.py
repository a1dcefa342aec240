"""What a leg proves, by the counters of both engines.

Rule: pure. A pull counts when about its whole prefix came from the source and no more, a control when nothing
came from anywhere; everything else is set aside, with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from sidecar.calibrate.plan import Kind, Leg
from sidecar.calibrate.words import several
from sidecar.engine_counters import Counters
from sidecar.remote.prompts import Answered

ABOUT = 0.9
"""So much of a prefix must have moved. Engines move whole chunks, the last of which may reach beyond the
prefix: with chunks of 256 tokens (a large one) at 2,048 it is 0.875 of the chunks at worst, mostly all."""
MOST_BEYOND_BLOCKS = 2
"""Tokens above a prefix, in blocks: its prompt ends within the next block, and one more is nobody's harm.
What is above that is another request's."""


class Verdict(StrEnum):
    """What became of a leg. The first two count."""

    MOVED = "moved"
    CLEAN = "clean"
    # Pulls.
    NOTHING = "nothing moved"
    PARTIAL = "a part moved"
    ELSEWHERE = "the source gave nothing"
    HAD_IT = "the consumer had it"
    # Either.
    CONTAMINATED = "contaminated"
    FAILED = "failed"
    UNUSABLE = "counters unusable"

    @property
    def counts(self) -> bool:
        """Whether the leg's time goes into the figures."""
        return self in (Verdict.MOVED, Verdict.CLEAN)


@dataclass(frozen=True, slots=True)
class Rise:
    """How much counters rose during a leg's second request; None where an engine has no such counter.

    pulled_bytes, pulled_tokens, local_tokens: of the consumer. given_chunks: of the source: chunks that peers
    found there.
    """

    pulled_bytes: float | None = None
    pulled_tokens: float | None = None
    local_tokens: float | None = None
    given_chunks: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A leg that was run. prefix_tokens: of the prompt as the engine counted it, in whole blocks."""

    leg: Leg
    verdict: Verdict
    reason: str
    prefix_tokens: int
    ttft_ms: float | None
    seed_ms: float | None
    rise: Rise


def risen(before: Counters, after: Counters, source: tuple[Counters, Counters]) -> Rise:
    """The rises between two readings of the consumer, and of the source."""
    return Rise(
        pulled_bytes=_by(before.pulled_bytes, after.pulled_bytes),
        pulled_tokens=_by(before.pulled_tokens, after.pulled_tokens),
        local_tokens=_by(before.local_tokens, after.local_tokens),
        given_chunks=_by(source[0].found_chunks, source[1].found_chunks),
    )


def _by(before: float | None, after: float | None) -> float | None:
    """Series appear at first use: what was not there before counts as 0."""
    return None if after is None else after - (before or 0.0)


_GAUGES = frozenset(("fetching", "deferred"))


def fallen(before: Counters, after: Counters) -> bool:
    """Whether a counter fell, or went away: its engine was started again, or another engine answered."""
    names = [field.name for field in fields(Counters) if field.name not in _GAUGES]
    return any((getattr(after, name) or 0.0) < (getattr(before, name) or 0.0) for name in names)


def judged(kind: Kind, prefix: tuple[int, int], answered: Answered, rise: Rise) -> tuple[Verdict, str]:
    """The verdict on a leg whose requests were answered, and why, for a person.

    prefix: its tokens, in whole blocks, and those of a block.
    """
    prefix_tokens, block_tokens = prefix
    had_tokens = max(0.0, (rise.local_tokens or 0.0))
    if kind is Kind.RECOMPUTE:
        return _control(prefix_tokens, max(had_tokens, answered.cached_tokens or 0), rise)
    if had_tokens > (1 - ABOUT) * prefix_tokens:
        return Verdict.HAD_IT, f"{had_tokens:,.0f} tokens were in the consumer's own cache"
    return _pull(prefix_tokens, MOST_BEYOND_BLOCKS * block_tokens, answered, rise)


def _control(prefix_tokens: int, cached_tokens: float, rise: Rise) -> tuple[Verdict, str]:
    if rise.pulled_bytes:
        return Verdict.CONTAMINATED, f"{rise.pulled_bytes:,.0f} bytes were pulled without a directive"
    if rise.given_chunks:
        return Verdict.CONTAMINATED, f"peers took {rise.given_chunks:,.0f} chunks from the source meanwhile"
    if cached_tokens > (1 - ABOUT) * prefix_tokens:
        return Verdict.CONTAMINATED, f"{cached_tokens:,.0f} tokens of a fresh prompt were cached already"
    return Verdict.CLEAN, ""


def _pull(prefix_tokens: int, beyond_tokens: int, answered: Answered, rise: Rise) -> tuple[Verdict, str]:
    if not rise.pulled_bytes:
        return Verdict.NOTHING, "0 bytes came over P2P"
    tokens = rise.pulled_tokens if rise.pulled_tokens is not None else answered.cached_tokens
    if tokens is not None and tokens < ABOUT * prefix_tokens:
        return Verdict.PARTIAL, f"{tokens:,.0f} of {prefix_tokens:,} tokens came over P2P"
    if tokens is not None and tokens > prefix_tokens + beyond_tokens:
        told = f"{tokens:,.0f} tokens came over P2P for a prefix of {prefix_tokens:,}"
        return Verdict.CONTAMINATED, f"{told}: others pulled meanwhile"
    if rise.pulled_bytes < ABOUT * prefix_tokens:
        came = several(round(rise.pulled_bytes), "byte")
        told = f"{came} came over P2P for {prefix_tokens:,} tokens"
        return Verdict.PARTIAL, f"{told}: no KV is that small"
    if rise.given_chunks == 0:
        return Verdict.ELSEWHERE, "bytes came, and the source's counter of found chunks did not rise"
    return Verdict.MOVED, ""
