"""What is likely behind an outcome."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.calibrate.crossover import Crossover, Shape
from sidecar.calibrate.outcomes import Outcome, Pair, causes, outcome
from sidecar.calibrate.plan import Kind
from sidecar.calibrate.verdicts import Measured, Rise, Verdict
from sidecar.remote import Facts
from tests.calibrate.made import FACTS, bad, measured

NOTHING = bad(Kind.PULL, Verdict.NOTHING, "0 bytes came over P2P")
PAIR = Pair(FACTS, FACTS, "a:7777")


def test_nothing_moved_names_what_refuses_in_silence_first() -> None:
    found = causes(Outcome.NO_PULL, PAIR, [NOTHING])
    assert found[0].startswith("PYTHONHASHSEED, --block-size, KV dtype")
    assert any("a:7777" in cause for cause in found)
    assert not any("sidecar" in cause for cause in found)


def test_a_sidecar_has_reasons_of_its_own() -> None:
    pair = replace(PAIR, consumer=replace(FACTS, through_sidecar=True))
    assert causes(Outcome.NO_PULL, pair, [NOTHING])[1].startswith("the consumer's sidecar does not pull")


def test_a_source_that_found_the_blocks_points_at_the_transfer() -> None:
    found = replace(NOTHING, rise=Rise(0.0, 0.0, 0.0, 128.0))
    assert causes(Outcome.NO_PULL, PAIR, [found])[0].startswith(
        "the source found the blocks, and none arrived"
    )


def test_what_the_engines_themselves_say_differs_comes_before_all() -> None:
    other = Facts(version="0.31.0", cache={"block_size": "32", "cache_dtype": "fp8"})
    found = causes(Outcome.NO_PULL, Pair(FACTS, other, "a:7777"), [NOTHING])
    assert found[:2] == [
        "vLLM's version differs: 0.32.0 on the source, 0.31.0 on the consumer",
        "the block size differs: 16 on the source, 32 on the consumer",
    ]
    # What one of them does not tell is no difference.
    assert found[2].startswith("PYTHONHASHSEED")


def test_a_rank_that_moves_nothing_is_not_made_up_for_by_another() -> None:
    moved = measured(0, Kind.PULL, 2048, 50.0)
    silent = replace(NOTHING, leg=replace(NOTHING.leg, rank=1))
    assert outcome([], [moved, silent], None) is Outcome.NO_PULL
    assert outcome([], [moved, replace(moved, leg=silent.leg)], None) is Outcome.UNCLEAR


def test_a_good_end_has_no_causes() -> None:
    assert causes(Outcome.CROSSES, PAIR, []) == []


UNUSABLE = bad(Kind.PULL, Verdict.UNUSABLE, "its counters fell meanwhile")


def test_counters_that_cannot_be_used_are_neither_a_pull_that_moved_nothing_nor_contamination() -> None:
    assert outcome([], [UNUSABLE] * 3, None) is Outcome.UNUSABLE
    controls = [measured(n, Kind.RECOMPUTE, 2048, 50.0) for n in range(3)]
    spoiled = [replace(one, verdict=Verdict.UNUSABLE) for one in controls]
    moved = [measured(n, Kind.PULL, 2048, 50.0) for n in range(4)]
    assert outcome([*moved, *spoiled], [], None) is Outcome.UNUSABLE
    assert causes(Outcome.UNUSABLE, PAIR, spoiled)[1].startswith("one of the URLs is of several engines")


def test_a_single_leg_whose_counters_fell_is_set_aside() -> None:
    moved = [measured(n, Kind.PULL, 2048, 50.0) for n in range(4)]
    assert outcome([*moved, UNUSABLE], [], None) is Outcome.UNCLEAR


def test_a_consumer_that_has_what_only_the_source_was_sent_is_the_source() -> None:
    had = bad(Kind.PULL, Verdict.HAD_IT, "2,048 tokens were in the consumer's own cache")
    assert causes(Outcome.NO_PULL, PAIR, [had])[0].endswith("both URLs lead to one engine")


def pulls(moved: int, aside: int, verdict: Verdict) -> list[Measured]:
    """So many legs that moved, and so many that did not count."""
    others = [bad(Kind.PULL, verdict, "x")] * aside
    return [*(measured(n, Kind.PULL, 2048, 50.0) for n in range(moved)), *others]


@pytest.mark.parametrize("verdict", [Verdict.NOTHING, Verdict.PARTIAL, Verdict.ELSEWHERE, Verdict.FAILED])
def test_more_than_a_third_of_the_pulls_without_their_prefix_is_no_pair_that_pulls(verdict: Verdict) -> None:
    crosses = Crossover(Shape.CROSSES, 2048, 16384, 8700, 8600, 8800)
    assert outcome(pulls(6, 14, verdict), [], crosses) is Outcome.NO_PULL
    assert outcome(pulls(4, 2, verdict), [], crosses) is Outcome.CROSSES


def test_more_than_a_third_of_the_pulls_contaminated_is_no_verdict() -> None:
    crosses = Crossover(Shape.CROSSES, 2048, 16384, 8700, 8600, 8800)
    assert outcome(pulls(6, 4, Verdict.CONTAMINATED), [], crosses) is Outcome.CONTAMINATED
    assert outcome(pulls(4, 2, Verdict.CONTAMINATED), [], crosses) is Outcome.CROSSES
    # The warm pulls of a run that never came to its legs.
    assert outcome([], pulls(0, 3, Verdict.CONTAMINATED), None) is Outcome.CONTAMINATED


def test_pulls_now_and_then_have_causes_of_their_own_before_those_of_none() -> None:
    legs = pulls(6, 14, Verdict.NOTHING)
    found = causes(Outcome.NO_PULL, PAIR, legs)
    assert found[0].startswith("some pulls move and others do not: one of the URLs is of several engines")
    assert found[2].startswith("PYTHONHASHSEED")
    # The pulls that moved were found at the source as well: that is no transfer that fails.
    assert not any("the transfer itself fails" in cause for cause in found)


def test_an_unclear_end_with_pulls_that_moved_nothing_asks_for_more_than_more_rounds() -> None:
    found = causes(Outcome.UNCLEAR, PAIR, pulls(5, 1, Verdict.NOTHING))
    assert found[0].startswith("some pulls move and others do not")
    assert found[-1].startswith("more rounds (--rounds)")
    assert causes(Outcome.UNCLEAR, PAIR, pulls(6, 0, Verdict.NOTHING)) == found[-1:]
