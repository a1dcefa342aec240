"""The latency model."""

from __future__ import annotations

import pytest

from sidecar.lab.latency import PROFILES

OSS, GLM = PROFILES["gpt-oss-120b"], PROFILES["glm"]


@pytest.mark.parametrize(("tokens", "ms"), [(1000, 51.212), (8000, 243.068), (32000, 1132.988)])
def test_recomputing_takes_what_was_measured(tokens: int, ms: float) -> None:
    assert OSS.recompute_ms(tokens) == pytest.approx(ms)


@pytest.mark.parametrize(("tokens", "ms"), [(1000, 29.57), (8000, 58.06), (32000, 155.74)])
def test_pulling_takes_what_was_measured(tokens: int, ms: float) -> None:
    assert OSS.pull_ms(tokens) == pytest.approx(ms)


def test_the_stages_of_a_plain_prompt_add_up_to_the_measured_recompute() -> None:
    stages_ms = OSS.transfer_stage_ms(0) + OSS.compute_stage_ms(0, 8000, pulled=False)
    assert stages_ms == pytest.approx(OSS.recompute_ms(8000))


def test_the_stages_of_a_whole_pull_add_up_to_the_measured_pull() -> None:
    stages_ms = OSS.transfer_stage_ms(8000) + OSS.compute_stage_ms(8000, 8000, pulled=True)
    assert stages_ms == pytest.approx(OSS.pull_ms(8000))


def test_half_a_pull_pays_for_the_transfer_and_for_computing_the_late_half() -> None:
    stages_ms = OSS.transfer_stage_ms(4000) + OSS.compute_stage_ms(4000, 8000, pulled=True)
    assert stages_ms == pytest.approx(25.5 + 4.07 * 4 + 24.6 * 4 + 0.312 * (64 - 16))


def test_a_local_hit_costs_nothing_but_the_first_token() -> None:
    assert OSS.compute_stage_ms(8000, 8000, pulled=False) == pytest.approx(26.3)


def test_late_tokens_cost_more_than_early_ones() -> None:
    assert OSS.compute_stage_ms(4000, 8000, pulled=False) > OSS.compute_stage_ms(0, 4000, pulled=False)


def test_gpt_oss_gains_from_every_pull_and_glm_from_8700_tokens_on() -> None:
    assert all(OSS.pull_ms(tokens) < OSS.recompute_ms(tokens) for tokens in (16, 1000, 100_000))
    assert GLM.pull_ms(8600) > GLM.recompute_ms(8600)
    assert GLM.pull_ms(8700) == pytest.approx(GLM.recompute_ms(8700))
    assert GLM.pull_ms(8800) < GLM.recompute_ms(8800)
