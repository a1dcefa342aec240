"""What wraps every connector's plan: decoding alone where nothing can be handed over, or prefill failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from sidecar.alone import Alone
from sidecar.body import Body
from sidecar.connectors import CONNECTORS
from sidecar.errors import (
    EngineConnectTimeout,
    EngineDied,
    EngineSilent,
    EngineUnreachable,
    LegFailed,
    LegRefused,
    UnusableAnswer,
)
from sidecar.plan import Ask, Deliver, Emit, Finish, Leg, Plan, Reply, Role, Start
from sidecar.planning import Planner, or_decode_alone
from sidecar.routing import NoPull
from tests.connectors.play import (
    DECODER,
    OPTIONS,
    SOURCE,
    call_of,
    fresh_ids,
    legs_of,
    play,
    reply_of,
    route_of,
)

EVERY = pytest.mark.parametrize("connector", CONNECTORS)
BY_PARAMS = pytest.mark.parametrize("connector", [name for name, row in CONNECTORS.items() if row.by_params])
OWN = (
    b'{"model":"m","prompt":["a","b"],"max_tokens":50,"kv_transfer_params":{"own":1},'
    b'"cache_hit_threshold":0.9}'
)


def planner(connector: str, policy: str = "fail") -> Planner:
    return Planner(CONNECTORS[connector], OPTIONS, local_after_failure=policy == "local")


@BY_PARAMS
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


@pytest.mark.parametrize("connector", ["sglang", "shared-storage"])
def test_legs_that_tell_each_other_nothing_by_params_are_never_decoded_alone(connector: str) -> None:
    step = next(planner(connector).plan(call_of(b'{"model":"m","prompt":["a","b"]}'), route_of()))
    assert [leg.role for leg in legs_of(step)] == [Role.PREFILL]


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


# --prefill-failure-policy=local

CLIENT = b'{"model":"m","prompt":"a","max_tokens":50,"kv_transfer_params":{"own":1}}'
POLICIES = ("fail", "local")
LOCAL = b'{"model":"m","prompt":"a","max_tokens":50}'


def refused(leg: Leg, status: int) -> LegFailed:
    return LegRefused(leg, Reply(status, b"", (), b"", Body({})))


HELPED = [
    pytest.param(EngineUnreachable, id="unreachable"),
    pytest.param(EngineConnectTimeout, id="connect-timeout"),
    *[pytest.param(partial(refused, status=status), id=str(status)) for status in (502, 503, 504)],
]
NOT_HELPED = [
    *[pytest.param(partial(refused, status=status), id=str(status)) for status in (400, 404, 429, 500)],
    pytest.param(EngineDied, id="died"),
    pytest.param(UnusableAnswer, id="unusable"),
]
Failure = Callable[[Leg], LegFailed]


def after_failure(plan: Plan, failed: Failure) -> Deliver:
    """How the plan ends when its first leg fails: what it delivers then, or what stands in for it."""
    [leg] = legs_of(step := next(plan))
    assert leg.role in (Role.PREFILL, Role.LOOKUP)
    failure = failed(leg)
    try:
        while isinstance(step, Start):
            step = plan.send([])
        plan.throw(failure)
    except StopIteration as ended:
        end: Deliver = ended.value
        return end.otherwise or end
    raise AssertionError("the plan goes on")


@EVERY
@pytest.mark.parametrize("failed", HELPED)
def test_a_prefiller_that_cannot_be_had_is_done_without(connector: str, failed: Failure) -> None:
    ids = fresh_ids()
    plan = planner(connector, "local").plan(call_of(CLIENT, ids=ids), route_of())
    deliver = after_failure(plan, failed)
    headers = ((b"x-request-id", ids.request.encode()),)
    assert deliver == Deliver(
        Leg(Role.DECODE, DECODER, b"POST", b"/v1/completions", headers, LOCAL), handoff_lost="prefill_failed"
    )


@EVERY
def test_done_without_it_the_local_engine_pulls_unless_it_is_the_source(connector: str) -> None:
    for own, pulls in ((None, True), (SOURCE.endpoint, False)):
        route = replace(route_of(source=SOURCE), own=own)
        plan = planner(connector, "local").plan(call_of(CLIENT), route)
        assert (after_failure(plan, EngineUnreachable).leg.pull is not None) is pulls


@EVERY
@pytest.mark.parametrize("failed", NOT_HELPED)
def test_any_other_failure_of_a_prefiller_is_the_clients(connector: str, failed: Failure) -> None:
    plan = planner(connector, "local").plan(call_of(CLIENT), route_of())
    [leg] = legs_of(next(plan))
    with pytest.raises(LegFailed) as raised:
        plan.throw(error := failed(leg))
    assert raised.value is error


@EVERY
def test_without_the_policy_every_failure_is_the_clients(connector: str) -> None:
    plan = planner(connector).plan(call_of(CLIENT), route_of())
    [leg] = legs_of(next(plan))
    with pytest.raises(EngineUnreachable):
        plan.throw(EngineUnreachable(leg))


@EVERY
def test_the_policy_changes_no_step(connector: str) -> None:
    ids = fresh_ids()
    plans = [planner(connector, policy).plan(call_of(CLIENT, ids=ids), route_of()) for policy in POLICIES]
    assert len({repr(next(plan)) for plan in plans}) == 1


@pytest.mark.parametrize("connector", ["nixlv2", "offloading"])
def test_a_plan_whose_prefill_answers_is_what_it_is_without_the_policy(connector: str) -> None:
    ids = fresh_ids()
    answer = reply_of(b'{"id":"x","usage":{"prompt_tokens_details":{"cached_tokens":9}}}')
    plain, wrapped = [
        play(planner(connector, policy).plan(call_of(CLIENT, ids=ids), route_of()), answer)
        for policy in POLICIES
    ]
    assert wrapped.steps == plain.steps
    assert replace(wrapped.deliver, otherwise=None) == plain.deliver


@pytest.mark.parametrize(
    ("role", "failed", "helped"),
    [
        (Role.LOOKUP, EngineUnreachable, True),
        (Role.LOOKUP, EngineSilent, True),
        (Role.LOOKUP, EngineDied, False),
        (Role.PREFILL, EngineSilent, False),
        (Role.DECODE, EngineUnreachable, False),
        (Role.ENCODE, EngineUnreachable, False),
    ],
)
def test_only_legs_towards_a_prefiller_are_done_without(role: Role, failed: Failure, helped: bool) -> None:
    call, route = call_of(CLIENT), route_of()
    leg = replace(call.decode(DECODER, None), role=role, timeout_s=5.0)

    def asking() -> Plan:
        yield Ask((leg,))
        raise AssertionError("not reached")

    plan = or_decode_alone(asking(), call, route)
    next(plan)
    with pytest.raises((StopIteration, LegFailed)) as ended:
        plan.throw(failed(leg))
    assert isinstance(ended.value, StopIteration) is helped


def test_an_answer_that_a_plan_composed_stands_as_it_is() -> None:
    def composing() -> Plan:
        yield Emit((), b"a")
        return Finish()

    assert play(or_decode_alone(composing(), call_of(CLIENT), route_of())).end == Finish()


@pytest.mark.parametrize("connector", CONNECTORS)
def test_params_are_the_sidecars_where_a_source_or_the_connector_needs_them(connector: str) -> None:
    told = [
        planner(connector).sets_params(route)
        for route in (route_of(prefiller=None), route_of(prefiller=None, source=SOURCE), route_of())
    ]
    assert told == [False, True, connector not in {"sglang", "shared-storage"}]
