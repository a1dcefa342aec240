"""Decides from an engine's counters what each pull moved, as far as that can be known.

Rule: pure; times are handed in. A figure is attributed to a pull only when no other pull can have had a part
in it; what cannot be told apart is `unknown`, never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import NamedTuple

from sidecar.engine_counters import Counters


class Outcome(StrEnum):
    """What became of a pull.

    skipped: it was named and not directed, for one of the reasons of `routing.NoPull`. moved: blocks came
    from the source. partial: some came, and the engine counted failed jobs. nothing: none came. unknown: the
    engine's figures cannot tell. rescued: the pull hung, and the request was sent again without it.
    """

    MOVED = "moved"
    PARTIAL = "partial"
    NOTHING = "nothing"
    UNKNOWN = "unknown"
    RESCUED = "rescued"
    SKIPPED = "skipped"


# Members that every request looks at. (A look at a class of members costs five times that, CPython 3.11.)
_MOVED, _NOTHING, _UNKNOWN = Outcome.MOVED, Outcome.NOTHING, Outcome.UNKNOWN

# Blocks are counted when they have arrived, which is before the first token; this much later the counters of
# every process of the engine have been written (they are written once per step).
SETTLE_S = 0.05


class Range(NamedTuple):
    """At least `least` and at most `most` of something."""

    least: float = 0.0
    most: float = 0.0

    def plus(self, amount: float, *, alone: bool) -> Range:
        """The same after so much was counted while this pull ran, alone or together with others."""
        return Range(self.least + amount if alone else self.least, self.most + amount)

    @property
    def exact(self) -> float | None:
        """The amount, where it is certain."""
        return self.least if self.least == self.most < inf else None


class Parts(NamedTuple):
    """A pull's part in each of `_COUNTED`. (Tuples, since hundreds of pulls that ran together share one.)"""

    moved_bytes: Range = Range()
    moved_tokens: Range = Range()
    failures: Range = Range()
    local_tokens: Range = Range()


_NOTHING_YET = Parts()


@dataclass(slots=True)
class Claim:
    """One pull's part in what an engine counted. Times are seconds of one monotonic clock.

    ended_s: when its blocks had arrived at the latest: the first byte of the answer, or the end of the leg.
    sampled_s: up to when counters have been looked at since it began; None before that.
    """

    began_s: float
    ended_s: float | None = None
    sampled_s: float | None = None
    parts: Parts = _NOTHING_YET

    @property
    def moved_bytes(self) -> Range:
        """Its bytes."""
        return self.parts.moved_bytes

    @property
    def moved_tokens(self) -> Range:
        """Its tokens."""
        return self.parts.moved_tokens

    @property
    def settled(self) -> bool:
        """Whether counters were read after the last of its blocks can have come."""
        return self.ended_s is not None and (self.sampled_s or 0.0) >= self.ended_s + SETTLE_S


@dataclass(frozen=True, slots=True)
class Sample:
    """An engine's counters at a moment between `at_s`, when they were asked for, and `came_s`."""

    at_s: float
    counters: Counters
    came_s: float | None = None


def account(claims: Sequence[Claim], before: Sample | None, after: Sample, *, sole: bool) -> None:
    """Give each claim its part of what was counted between two samples.

    sole: all of this engine's pulls are among the claims. Without `before`, or where a counter is absent or
    went back (the engine was started again), all is possible.
    """
    start_s = before.at_s if before else -inf
    end_s = after.came_s or after.at_s  # what began meanwhile may be in it, and may not
    sharing = [
        claim
        for claim in claims
        if claim.began_s < end_s and (claim.ended_s is None or claim.ended_s + SETTLE_S > start_s)
    ]
    alone = sole and len(sharing) == 1
    counted = [_counted(before, after, name) for name in _COUNTED]
    made: dict[Parts, Parts] = {}
    for claim in sharing:
        claim.sampled_s = after.at_s
        parts = made.get(claim.parts)
        if parts is None:
            taken = zip(claim.parts, counted, strict=True)
            parts = made[claim.parts] = Parts(*[part.plus(amount, alone=alone) for part, amount in taken])
        claim.parts = parts


# The counters that claims have a part in, in the order of `Parts`.
_COUNTED = ("pulled_bytes", "pulled_tokens", "failures", "local_tokens")


def _counted(before: Sample | None, after: Sample, name: str) -> float:
    """How much was counted between the samples; infinity where that is not known."""
    if before is None:
        return inf
    then, now = _at(before, name), _at(after, name)
    return now - then if then is not None and now is not None and now >= then else inf


def _at(sample: Sample, name: str) -> float | None:
    value: float | None = getattr(sample.counters, name)
    # A labelled series appears at its first use: an engine that asks its peers has the others at zero.
    known = sample.counters.queries is not None or sample.counters.pulled_bytes is not None
    return 0.0 if value is None and known else value


def outcome(claim: Claim, cached_tokens: int | None) -> Outcome:
    """What became of a pull. cached_tokens: what the engine's answer reported, None where it did not."""
    if cached_tokens == 0 or (claim.sampled_s is not None and claim.moved_bytes.most == 0):
        return _NOTHING
    if claim.moved_bytes.exact:
        return Outcome.PARTIAL if claim.parts.failures.exact else _MOVED
    return _UNKNOWN


def was_local(claim: Claim, cached_tokens: int | None) -> bool:
    """Whether a pull that moved nothing had nothing to move: the engine had a prefix itself."""
    return bool(cached_tokens) or bool(claim.parts.local_tokens.exact)


def seconds_avoided(tokens: float, counters: Counters) -> float | None:
    """An estimate of the prefill that these tokens would have taken, from the engine's own average."""
    if not counters.prefill_s or not counters.computed_tokens:
        return None
    return tokens * counters.prefill_s / counters.computed_tokens
