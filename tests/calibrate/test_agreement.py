"""Pulls are judged by each other's bytes."""

from __future__ import annotations

from dataclasses import replace

from sidecar.calibrate.agreement import agreed
from sidecar.calibrate.outcomes import Outcome
from sidecar.calibrate.plan import Kind
from sidecar.calibrate.verdicts import Measured, Rise, Verdict
from tests.calibrate.made import legs_of_profile, measured, report


def moving(tokens: int, moved_bytes: float, number: int = 0) -> Measured:
    """A pull of so many tokens that moved so many bytes."""
    rise = Rise(moved_bytes, float(tokens), 0.0, tokens / 16)
    return replace(measured(number, Kind.PULL, tokens, 50.0), rise=rise)


def verdicts(*pulls: Measured) -> list[Verdict]:
    return [one.verdict for one in agreed([], pulls)[1]]


def test_bytes_of_others_are_not_those_of_the_prefix() -> None:
    legs = (moving(8192, 524_288), moving(8192, 1_110_000), moving(8192, 524_288))
    assert verdicts(*legs) == [Verdict.MOVED, Verdict.CONTAMINATED, Verdict.MOVED]
    assert agreed([], legs)[1][1].reason == (
        "135 bytes came per token where other pulls took 64: others pulled meanwhile"
    )


def test_of_two_that_differ_the_smaller_is_believed_whichever_was_first() -> None:
    assert verdicts(moving(512, 32_768), moving(512, 65_536)) == [Verdict.MOVED, Verdict.CONTAMINATED]
    assert verdicts(moving(512, 65_536), moving(512, 32_768)) == [Verdict.CONTAMINATED, Verdict.MOVED]


def test_a_length_all_of_whose_pulls_were_joined_by_others_is_told_by_shorter_ones() -> None:
    assert verdicts(moving(512, 32_768), moving(1024, 131_072), moving(1024, 131_072)) == [
        Verdict.MOVED,
        Verdict.CONTAMINATED,
        Verdict.CONTAMINATED,
    ]


def test_a_tenth_apart_is_about_the_same() -> None:
    legs = [moving(1000, moved_bytes) for moved_bytes in (64_000, 64_000, 70_400, 57_600, 70_500, 57_500)]
    assert verdicts(*legs) == [*[Verdict.MOVED] * 4, Verdict.CONTAMINATED, Verdict.PARTIAL]


def test_layers_with_a_window_move_fewer_bytes_per_token_of_longer_prefixes() -> None:
    legs = [moving(n, 64.0 * n + 64 * 1024) for n in (512, 2048, 16384) for _ in range(2)]
    assert verdicts(*legs) == [Verdict.MOVED] * 6


def test_of_engines_that_count_no_tokens_lengths_tell_nothing_of_each_other() -> None:
    # Chunks of 256 tokens: of 1,000 the last 232 stay away.
    legs = [moving(1000, 64.0 * 768), moving(1000, 64.0 * 768), moving(2048, 131_072), moving(2048, 131_072)]
    uncounted = [replace(one, rise=replace(one.rise, pulled_tokens=None)) for one in legs]
    assert verdicts(*uncounted) == [Verdict.MOVED] * 4


def test_a_warm_pull_is_judged_too_and_what_did_not_move_is_left_alone() -> None:
    legs = [moving(512, 32_768), moving(512, 32_768), replace(moving(512, 1.0), verdict=Verdict.NOTHING)]
    warm, others = agreed([moving(512, 65_536)], legs)
    assert [one.verdict for one in warm] == [Verdict.CONTAMINATED]
    assert others == legs


def test_a_run_beside_others_is_no_verdict() -> None:
    def joined(one: Measured) -> Measured:
        if one.leg.kind is Kind.RECOMPUTE or one.leg.number % 5 < 3:
            return one
        return replace(one, rise=replace(one.rise, pulled_bytes=2.0 * (one.rise.pulled_bytes or 0.0)))

    told = report([joined(one) for one in legs_of_profile("glm")])
    assert (told.ended, told.recommended) == (Outcome.CONTAMINATED, None)
    assert {row.moved_bytes for row in told.rows} == {64.0 * row.prefix_tokens for row in told.rows}
