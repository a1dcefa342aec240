"""What counters prove of a pull, and what they do not."""

from __future__ import annotations

from math import inf

import pytest

from sidecar.engine_counters import Counters
from sidecar.evidence import Claim, Outcome, Sample, account, outcome, seconds_avoided, was_local


def sample(at_s: float, pulled: float | None = None, tokens: float | None = None, **more: float) -> Sample:
    """Counters of an engine that has asked its peers before."""
    return Sample(at_s, Counters(queries=1.0, pulled_bytes=pulled, pulled_tokens=tokens, **more))


def claim(began_s: float, ended_s: float | None) -> Claim:
    return Claim(began_s, ended_s)


def test_a_pull_that_ran_alone_has_all_that_was_counted() -> None:
    pull = claim(1.0, 1.5)
    account([pull], sample(0.0, 100.0, 10.0), sample(2.0, 164.0, 16.0), sole=True)
    assert (pull.moved_bytes.exact, pull.moved_tokens.exact, pull.settled) == (64.0, 6.0, True)
    assert outcome(pull, None) is Outcome.MOVED
    assert outcome(pull, 6) is Outcome.MOVED


def test_failed_jobs_beside_moved_blocks_are_a_partial_pull() -> None:
    pull = claim(1.0, 1.5)
    account([pull], sample(0.0, 0.0, failures=1.0), sample(2.0, 64.0, failures=2.0), sole=True)
    assert outcome(pull, None) is Outcome.PARTIAL


def test_pulls_that_ran_together_share_a_sum_that_nobody_can_divide() -> None:
    pulls = [claim(1.0, 1.5), claim(1.4, 1.6)]
    account(pulls, sample(0.0, 0.0), sample(2.0, 64.0), sole=True)
    for pull in pulls:
        assert (pull.moved_bytes.least, pull.moved_bytes.most) == (0.0, 64.0)
        assert outcome(pull, None) is Outcome.UNKNOWN
        assert outcome(pull, 96) is Outcome.UNKNOWN
    assert outcome(pulls[0], 0) is Outcome.NOTHING  # nothing was cached for it, so nothing came


def test_a_sum_of_zero_is_zero_for_each() -> None:
    pulls = [claim(1.0, 1.5), claim(1.4, 1.6)]
    account(pulls, sample(0.0, 64.0), sample(2.0, 64.0), sole=False)
    assert [outcome(pull, None) for pull in pulls] == [Outcome.NOTHING] * 2


def test_an_engine_that_others_direct_too_proves_only_zeros() -> None:
    pull = claim(1.0, 1.5)
    account([pull], sample(0.0, 0.0), sample(2.0, 64.0), sole=False)
    assert outcome(pull, None) is Outcome.UNKNOWN


def test_a_pull_over_several_samples_has_the_sum_of_those_in_which_it_was_alone() -> None:
    long, short = claim(0.5, 3.5), claim(1.2, 1.5)
    account([long, short], sample(0.0, 0.0), sample(1.0, 10.0), sole=True)
    account([long, short], sample(1.0, 10.0), sample(2.0, 14.0), sole=True)
    assert not long.settled
    account([long, short], sample(2.0, 14.0), sample(4.0, 15.0), sole=True)
    assert (long.moved_bytes.least, long.moved_bytes.most, long.settled) == (11.0, 15.0, True)
    assert (short.moved_bytes.least, short.moved_bytes.most) == (0.0, 4.0)


def test_a_sample_right_at_the_first_byte_is_too_early() -> None:
    pull = claim(1.0, 1.5)
    account([pull], sample(0.0, 0.0), sample(1.52, 0.0), sole=True)
    assert not pull.settled
    account([pull], sample(1.52, 0.0), sample(2.0, 64.0), sole=True)
    assert (pull.settled, outcome(pull, None)) == (True, Outcome.MOVED)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, sample(2.0, 64.0)),
        (sample(0.0, 500.0), sample(2.0, 64.0)),
        (Sample(0.0, Counters()), Sample(2.0, Counters())),
        (Sample(0.0, Counters()), sample(2.0, 64.0)),
    ],
    ids=["no sample before", "started again", "no such counter", "counter appeared"],
)
def test_what_cannot_be_compared_proves_nothing(before: Sample | None, after: Sample) -> None:
    pull = claim(1.0, 1.5)
    account([pull], before, after, sole=True)
    assert (pull.moved_bytes.most, outcome(pull, None)) == (inf, Outcome.UNKNOWN)
    assert outcome(pull, 0) is Outcome.NOTHING


def test_a_series_that_appears_with_the_first_pull_began_at_zero() -> None:
    pull = claim(1.0, 1.5)
    account([pull], sample(0.0), sample(2.0, 64.0), sole=True)
    assert (pull.moved_bytes.exact, outcome(pull, None)) == (64.0, Outcome.MOVED)


def test_pulls_before_and_after_the_samples_have_no_part() -> None:
    early, late, pull = claim(0.0, 0.5), claim(2.5, None), claim(1.0, 1.5)
    account([early, late, pull], sample(0.8, 0.0), sample(2.0, 64.0), sole=True)
    assert (early.sampled_s, late.sampled_s, pull.moved_bytes.exact) == (None, None, 64.0)


def test_a_pull_that_began_while_counters_were_read_has_a_part_in_what_they_say() -> None:
    """Its blocks may be in the text already: the next sample, which does not rise, is no proof of nothing."""
    pull = claim(2.05, 2.1)
    early, late = sample(0.0, 0.0), sample(3.0, 64.0)
    between = Sample(2.0, sample(2.0, 64.0).counters, 2.2)
    account([pull], early, between, sole=True)
    assert not pull.settled
    account([pull], between, late, sole=True)
    assert (pull.settled, pull.moved_bytes.exact, outcome(pull, None)) == (True, 64.0, Outcome.MOVED)
    before, during = claim(1.0, 1.5), claim(2.05, 2.1)
    account([before, during], early, between, sole=True)
    assert (before.moved_bytes.exact, outcome(before, None)) == (None, Outcome.UNKNOWN)


def test_a_pull_without_a_sample_is_unknown() -> None:
    assert outcome(claim(1.0, 1.5), None) is Outcome.UNKNOWN


def test_nothing_moved_because_the_engine_had_it_itself() -> None:
    pull = claim(1.0, 1.5)
    account([pull], sample(0.0, 0.0, local_tokens=5.0), sample(2.0, 0.0, local_tokens=69.0), sole=True)
    assert (outcome(pull, None), was_local(pull, None)) == (Outcome.NOTHING, True)
    computed = claim(1.0, 1.5)
    account([computed], sample(0.0, 0.0, local_tokens=5.0), sample(2.0, 0.0, local_tokens=5.0), sole=True)
    assert (was_local(computed, None), was_local(computed, 0), was_local(computed, 64)) == (
        False,
        False,
        True,
    )


def test_the_prefill_that_was_avoided_is_the_engines_average() -> None:
    assert seconds_avoided(200, Counters(prefill_s=3.0, computed_tokens=1000.0)) == pytest.approx(0.6)
    assert seconds_avoided(200, Counters(prefill_s=3.0)) is None
    assert seconds_avoided(200, Counters(computed_tokens=0.0, prefill_s=0.0)) is None
