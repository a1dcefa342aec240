"""Why a route is what it is, in sentences: each reason has one."""

from __future__ import annotations

import pytest

from sidecar.alone import Alone
from sidecar.debug.reasons import ALONE, NO_PULL, SourceState, reasons
from sidecar.routing import NoPull, Route
from tests.connectors.play import DECODER, PREFILLER, SOURCE

NAMED = Route(DECODER, PREFILLER, 2, SOURCE, SOURCE.endpoint)


def test_every_reason_has_its_sentence() -> None:
    assert set(NO_PULL) == set(NoPull)
    assert set(ALONE) == set(Alone)


def test_a_request_that_names_nothing_is_answered_here() -> None:
    assert list(reasons(Route(DECODER), None, None)) == ["no routing header: the local engine answers alone"]


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        ("accepts", "source guard: accepted a connection"),
        ("off", "source guard off"),
        (
            "unknown",
            "source guard: not probed yet; a request does that first, and goes without a pull if it fails",
        ),
    ],
)
def test_prefiller_and_source_are_told_with_what_the_guard_knows(guard: str, said: str) -> None:
    assert list(reasons(NAMED, None, SourceState(guard))) == [
        "prefiller 10.0.0.3:8000, one of 2 named: computes the prompt, and the decoder gets its blocks",
        f"source 10.0.0.2:8001: the prefiller pulls from its P2P port 7778 ({said})",
    ]


def test_a_request_that_runs_alone_pulls_itself() -> None:
    first, second = reasons(NAMED, "several_prompts", SourceState("accepts"))
    assert first.startswith("prefiller 10.0.0.3:8000, one of 2 named: not asked (several_prompts): several")
    assert second.startswith("source 10.0.0.2:8001: the decoder pulls from its P2P port 7778")


@pytest.mark.parametrize("reason", NoPull)
def test_a_source_that_is_not_pulled_from_is_told_with_its_reason(reason: NoPull) -> None:
    named = None if reason is NoPull.MALFORMED else SOURCE.endpoint
    route = Route(DECODER, named_source=named, no_pull=reason)
    who = "(unreadable)" if named is None else "10.0.0.2:8001"
    assert list(reasons(route, None, None)) == [f"source {who}: no pull ({reason}): {NO_PULL[reason]}"]
