"""From legs to the verdict, on the models of the embedded engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.calibrate.crossover import Shape
from sidecar.calibrate.headline import headline
from sidecar.calibrate.outcomes import Outcome
from sidecar.calibrate.plan import Kind
from sidecar.calibrate.report import reported
from sidecar.calibrate.verdicts import Measured, Verdict
from sidecar.lab.latency import PROFILES
from tests.calibrate.made import KV_BYTES, LENGTHS, bad, legs_of, legs_of_profile, report, setting


def test_the_models_own_crossover_is_recovered() -> None:
    told = report(legs_of_profile("glm"))
    assert told.ended is Outcome.CROSSES
    assert told.crossover is not None
    assert told.crossover.tokens == pytest.approx(8700, rel=0.02)
    assert told.recommended is not None
    assert told.crossover.high is not None
    assert told.crossover.high * 1.2 <= told.recommended < told.crossover.high * 1.2 + 16


def test_where_pulls_always_win_the_threshold_is_the_shortest_length() -> None:
    told = report(legs_of_profile("gpt-oss-120b"))
    assert (told.ended, told.recommended) == (Outcome.PULLS_WIN, 2048)
    assert told.causes[0].startswith("shorter prefixes may pay too")


def test_the_path_is_told_by_the_pulls() -> None:
    figures = report(legs_of_profile("glm")).figures
    # 9 ms per thousand tokens of 64 bytes; the warm pull took 200 ms, a later one 163.05.
    assert figures.kv_bytes_per_token == KV_BYTES
    assert figures.gb_per_s == pytest.approx(64 * 1000 / 9 / 1e6, rel=0.02)
    assert figures.floor_ms == pytest.approx(144.6, rel=0.02)
    assert figures.setup_ms == pytest.approx(200 - 163.05, rel=0.1)


def test_legs_that_do_not_count_are_in_no_time_but_in_the_table() -> None:
    stray = bad(Kind.RECOMPUTE, Verdict.CONTAMINATED, "64 bytes were pulled without a directive")
    told = report([*legs_of_profile("glm"), stray])
    assert told.ended is Outcome.CROSSES
    assert told.aside == [stray]
    assert [(row.prefix_tokens, row.aside) for row in told.rows] == [(n, int(n == 2048)) for n in LENGTHS]
    assert told.rows[0].recompute is not None
    assert told.rows[0].recompute.most < 99


def test_many_contaminated_controls_make_the_others_worthless() -> None:
    strays = [bad(Kind.RECOMPUTE, Verdict.CONTAMINATED, "x")] * 11
    told = report([*legs_of_profile("glm"), *strays])
    assert (told.ended, told.recommended) == (Outcome.CONTAMINATED, None)
    assert told.causes[0].startswith("other clients use the pair")


def test_a_pair_that_moves_nothing_is_told_so_whatever_else_was_measured() -> None:
    controls = [one for one in legs_of_profile("glm") if one.leg.kind is Kind.RECOMPUTE]
    told = report([*controls, bad(Kind.PULL, Verdict.NOTHING, "0 bytes came over P2P")])
    assert (told.ended, told.recommended) == (Outcome.NO_PULL, None)


def test_a_slow_path_never_pays() -> None:
    told = report(legs_of(lambda n: 10 + n / 100, lambda n: 50 + n / 50))
    assert (told.ended, told.recommended) == (Outcome.COMPUTING_WINS, None)
    assert told.crossover is not None
    assert told.crossover.shape is Shape.COMPUTING_WINS


def test_too_few_legs_do_not_tell() -> None:
    assert report(legs_of_profile("glm", (2048,))).ended is Outcome.UNCLEAR


def test_an_interrupted_run_gives_what_it_has() -> None:
    told = report(legs_of_profile("glm"), Outcome.INTERRUPTED)
    assert told.ended is Outcome.INTERRUPTED
    assert told.recommended is not None
    assert report([], Outcome.INTERRUPTED).recommended is None


def without_pulls(legs: list[Measured], tokens: int, kept: int) -> list[Measured]:
    """All legs, but no more than so many pulls of a length."""
    mine = [one for one in legs if one.leg.kind is Kind.PULL and one.prefix_tokens == tokens]
    return [one for one in legs if one not in mine[kept:]]


def test_a_length_with_a_single_pull_of_several_rounds_carries_no_fit() -> None:
    told = report(without_pulls(legs_of_profile("glm"), 16384, 1))
    assert told.crossover is not None
    assert told.crossover.longest == 8192
    assert told.ended is Outcome.COMPUTING_WINS
    both = report(without_pulls(legs_of_profile("glm"), 16384, 2))
    assert (both.ended, both.crossover and both.crossover.longest) == (Outcome.CROSSES, 16384)


def test_prompts_of_text_are_of_their_length_though_each_has_other_tokens() -> None:
    legs = [
        replace(one, prefix_tokens=one.prefix_tokens - 16 * (one.leg.number % 7))
        for one in legs_of_profile("glm")
    ]
    told = report(legs)
    assert told.ended is Outcome.CROSSES
    assert (told.crossover and told.crossover.longest) == 16384


def test_a_single_round_has_single_legs() -> None:
    profile = PROFILES["glm"]
    once = legs_of(profile.recompute_ms, profile.pull_ms, rounds=1)
    assert reported(setting(rounds=1), [], once, None, None).ended is Outcome.CROSSES
    # Of a run of five rounds that was interrupted in the first, nothing is told.
    assert report(once, Outcome.INTERRUPTED).recommended is None


def test_pulls_most_of_which_moved_nothing_give_no_threshold() -> None:
    legs = [
        replace(one, verdict=Verdict.NOTHING) if one.leg.kind is Kind.PULL and one.leg.number % 3 else one
        for one in legs_of_profile("glm")
    ]
    told = report(legs)
    assert (told.ended, told.recommended, told.crossover) == (Outcome.NO_PULL, None, None)
    assert headline(told) == (
        "FAILED: 12 of 20 pulls did not move about the whole prefix: no verdict on what was left"
    )


def test_a_rank_that_moves_nothing_is_not_told_as_pulls_that_sometimes_do() -> None:
    legs = [
        replace(one, leg=replace(one.leg, rank=1), verdict=Verdict.NOTHING)
        if one.leg.kind is Kind.PULL and one.leg.prefix_tokens > 4096
        else one
        for one in legs_of_profile("glm")
    ]
    told = reported(setting(ranks=2), [], legs, None, None)
    assert told.ended is Outcome.NO_PULL
    assert headline(told) == "FAILED: no pull of a data-parallel rank ever moved its prefix"
