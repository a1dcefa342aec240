"""The whole span tree of each scenario is the one that is kept beside this test."""

from __future__ import annotations

import pytest

from tests.engines import Got
from tests.observers.scenarios import scenarios
from tests.observers.trees import KEPT, REWRITE, played

TRACE = "0af7651916cd43dd8448eb211c80319c"
CARRIED = [
    ("traceparent", f"00-{TRACE}-b7ad6b7169203331-01"),
    ("tracestate", "vendor=a,other=b"),
    ("baggage", "tenant=t1;kept=yes"),
    ("baggage", "k=v"),
]
# What the sidecar asks for itself carries nothing of the client's but the trace that it belongs to.
OWN_QUESTIONS = ("/metrics", "/query")


@pytest.mark.parametrize("name", scenarios())
async def test_a_scenario_makes_the_tree_that_is_kept(name: str) -> None:
    kept = KEPT / f"{name}.txt"
    tree = (await played(scenarios()[name])).tree
    assert tree == kept.read_text(), f"{kept.name} tells another tree; read the difference, then: {REWRITE}"


def test_every_kept_tree_has_its_scenario() -> None:
    assert {kept.stem for kept in KEPT.glob("*.txt")} == set(scenarios())


@pytest.mark.parametrize("name", scenarios())
async def test_every_leg_of_a_scenario_carries_baggage_and_tracestate_on(name: str) -> None:
    seen = await played(scenarios()[name], *CARRIED)
    called = {
        f"00-{TRACE}-{span.context.span_id:016x}-01"
        for span in seen.spans
        if span.context and span.kind.name == "CLIENT"
    }
    sent = [got for engine in seen.engines.values() for got in engine.requests if _of_a_leg(got)]
    parents = [parent for got in sent for parent in got.all("traceparent")]
    assert len(parents) == len(sent)
    assert set(parents) <= called
    assert len(set(parents)) == len(sent)
    assert {tuple(got.all("tracestate")) for got in sent} <= {("vendor=a,other=b",)}
    assert {tuple(got.all("baggage")) for got in sent} <= {("tenant=t1;kept=yes", "k=v")}
    assert sent or scenarios()[name].unreachable


def _of_a_leg(got: Got) -> bool:
    return got.target not in OWN_QUESTIONS
