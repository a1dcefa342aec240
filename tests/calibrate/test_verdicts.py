"""What counters prove about a leg."""

from __future__ import annotations

import pytest

from sidecar.calibrate.plan import Kind
from sidecar.calibrate.verdicts import Rise, Verdict, fallen, judged, risen
from sidecar.engine_counters import Counters
from sidecar.remote import Answered

N = 2048


def answered(cached: int | None = None) -> Answered:
    return Answered(10.0, 11.0, N + 1, 1, cached)


@pytest.mark.parametrize(
    ("kind", "rise", "cached", "verdict"),
    [
        (Kind.PULL, Rise(131072, N, 0, 128), N, Verdict.MOVED),
        # An older engine has no count of pulled tokens, and reports none cached.
        (Kind.PULL, Rise(131072, None, 0, None), None, Verdict.MOVED),
        # Whole chunks only: the last one stayed away.
        (Kind.PULL, Rise(131072, 0.91 * N, 0, 128), None, Verdict.MOVED),
        (Kind.PULL, Rise(0, 0, 0, 0), 0, Verdict.NOTHING),
        (Kind.PULL, Rise(None, None, None, None), None, Verdict.NOTHING),
        (Kind.PULL, Rise(65536, N / 2, 0, 64), N // 2, Verdict.PARTIAL),
        (Kind.PULL, Rise(65536, None, 0, 64), N // 2, Verdict.PARTIAL),
        (Kind.PULL, Rise(131072, N, 0, 0), N, Verdict.ELSEWHERE),
        # The prompt's last block, and one more; beyond that others pulled.
        (Kind.PULL, Rise(131072, N + 32, 0, 128), N, Verdict.MOVED),
        (Kind.PULL, Rise(131072, N + 33, 0, 128), N, Verdict.CONTAMINATED),
        (Kind.PULL, Rise(1310720, 10 * N, 0, 128), N, Verdict.CONTAMINATED),
        # A byte for all of its tokens is no KV.
        (Kind.PULL, Rise(1, N, 0, 128), N, Verdict.PARTIAL),
        (Kind.PULL, Rise(0, 0, N, 0), N, Verdict.HAD_IT),
        (Kind.RECOMPUTE, Rise(0, 0, 0, 0), 0, Verdict.CLEAN),
        (Kind.RECOMPUTE, Rise(None, None, None, None), None, Verdict.CLEAN),
        (Kind.RECOMPUTE, Rise(1024, 16, 0, 1), 16, Verdict.CONTAMINATED),
        (Kind.RECOMPUTE, Rise(0, 0, 0, 3), 0, Verdict.CONTAMINATED),
        (Kind.RECOMPUTE, Rise(0, 0, N, 0), None, Verdict.CONTAMINATED),
        (Kind.RECOMPUTE, Rise(0, 0, None, 0), N, Verdict.CONTAMINATED),
    ],
)
def test_a_leg_is_judged_by_both_engines_counters(
    kind: Kind, rise: Rise, cached: int | None, verdict: Verdict
) -> None:
    found, reason = judged(kind, (N, 16), answered(cached), rise)
    assert found is verdict
    assert bool(reason) is not verdict.counts


def test_the_reason_says_what_moved() -> None:
    assert judged(Kind.RECOMPUTE, (N, 16), answered(), Rise(4096, 64, 0, 4))[1] == (
        "4,096 bytes were pulled without a directive"
    )


def test_series_that_appear_with_the_leg_rise_from_zero() -> None:
    before, after = Counters(local_tokens=5), Counters(local_tokens=7, pulled_bytes=64, pulled_tokens=1)
    assert risen(before, after, (Counters(), Counters(found_chunks=2))) == Rise(64, 1, 2, 2)


def test_what_no_engine_counts_is_not_known() -> None:
    assert risen(Counters(), Counters(), (Counters(), Counters())) == Rise()


@pytest.mark.parametrize(
    ("before", "after", "fell"),
    [
        (Counters(pulled_bytes=9), Counters(pulled_bytes=9), False),
        (Counters(pulled_bytes=9), Counters(pulled_bytes=8), True),
        # A labelled series is not there until it is used: an engine that was started again has none.
        (Counters(stored_bytes=9), Counters(), True),
        (Counters(stored_bytes=0), Counters(), False),
        (Counters(), Counters(pulled_bytes=9), False),
        (Counters(fetching=2, deferred=2), Counters(fetching=1, deferred=1), False),
    ],
)
def test_a_counter_that_falls_is_known_from_one_that_stands(
    before: Counters, after: Counters, fell: bool
) -> None:
    assert fallen(before, after) is fell
