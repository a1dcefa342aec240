"""What wraps every connector's plan: decoding alone where nothing can be handed over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.alone import Alone
from sidecar.connectors import CONNECTORS
from sidecar.plan import Role
from sidecar.planning import Planner
from sidecar.routing import NoPull
from tests.connectors.play import DECODER, OPTIONS, SOURCE, call_of, legs_of, play, route_of

EVERY = pytest.mark.parametrize("connector", CONNECTORS)
OWN = (
    b'{"model":"m","prompt":["a","b"],"max_tokens":50,"kv_transfer_params":{"own":1},'
    b'"cache_hit_threshold":0.9}'
)


def planner(connector: str) -> Planner:
    return Planner(CONNECTORS[connector], OPTIONS)


@EVERY
def test_what_cannot_be_handed_over_is_decoded_here_with_the_reason(connector: str) -> None:
    call = call_of(b'{"model":"m","prompt":"a","use_beam_search":true,"n":2}')
    played = play(planner(connector).plan(call, route_of()))
    assert played.steps == []
    assert (played.deliver.alone, played.deliver.handoff_lost) == (Alone.BEAM_SEARCH, None)
    assert played.deliver.cached_tokens is None
    assert (played.deliver.leg.role, played.deliver.leg.target) == (Role.DECODE, DECODER)
    assert played.deliver.leg.content == call.body.encode()


def test_nothing_of_the_clients_params_goes_on_and_no_threshold_gives_the_request_back() -> None:
    played = play(planner("nixlv2").plan(call_of(OWN), route_of()))
    assert played.deliver.leg.content == (
        b'{"model":"m","prompt":["a","b"],"max_tokens":50,"cache_hit_threshold":0}'
    )


@EVERY
def test_choices_of_one_prompt_go_through_the_connector(connector: str) -> None:
    step = next(planner(connector).plan(call_of(b'{"model":"m","prompt":"a","n":2}'), route_of()))
    assert legs_of(step)[0].role in (Role.PREFILL, Role.LOOKUP)


@pytest.mark.parametrize("prefiller", [True, False])
def test_several_prompts_are_never_pulled_for(prefiller: bool) -> None:
    call = call_of(OWN)
    named = route_of(source=SOURCE)
    if not prefiller:
        named = replace(named, prefiller=None)
    route = planner("offloading").settled(call, named)
    assert (route.source, route.no_pull) == (None, NoPull.SEVERAL_PROMPTS)
    assert play(planner("offloading").plan(call, route)).deliver.leg.pull is None


def test_a_route_without_a_source_stays_as_it_is() -> None:
    route = route_of()
    assert planner("offloading").settled(call_of(OWN), route) is route


def test_one_prompt_goes_through_the_connector() -> None:
    route = route_of(source=SOURCE)
    call = call_of(b'{"model":"m","prompt":["a"],"n":1}')
    assert planner("offloading").settled(call, route) is route
    step = next(planner("offloading").plan(call, route))
    assert [leg.role for leg in legs_of(step)] == [Role.PREFILL]
