"""Prompts that nobody has asked before."""

from __future__ import annotations

from sidecar.calibrate.cost import PROBES
from sidecar.calibrate.tokens import SPANS, Prompts


def test_each_leg_and_each_run_has_ids_of_its_own() -> None:
    prompts, again = Prompts("a", SPANS[0]), Prompts("b", SPANS[0])
    first = prompts.make(0, 513)
    assert len(first) == 513
    assert prompts.make(0, 513) == first
    assert first[:16] not in (prompts.make(1, 513)[:16], again.make(0, 513)[:16])
    assert all(isinstance(one, int) and one in SPANS[0] for one in first)


def test_the_stated_cost_counts_every_kind_of_prompt_that_is_tried() -> None:
    assert len(SPANS) + 1 == PROBES


def test_a_text_has_about_so_many_tokens_and_not_more() -> None:
    text = Prompts("a", None, word_tokens=2.0).make(0, 1000)
    assert isinstance(text, str)
    assert 0.95 * 1000 < 2 * len(text.split()) <= 1000
