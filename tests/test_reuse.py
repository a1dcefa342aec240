"""The plan of a turn that extends another one, played (`sidecar.reuse`, by way of `nixlv2`)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sidecar.call import Call
from sidecar.connectors import nixlv2
from sidecar.errors import EngineDied, EngineSilent, EngineUnreachable, LegFailed, LegRefused, UnusableAnswer
from sidecar.plan import Ask, Leg, Reply, Role
from sidecar.turns import Turn, conversation, prompt_digest
from tests.connectors.play import DECODER, OPTIONS, PREFILLER, call_of, play, reply_of, route_of

PROMPT = [1, 2, 3, 4]
SAID = [11, 12, 13]
WHOLE = [*PROMPT, *SAID, 98, 99]
HELD: dict[str, Any] = {
    "remote_block_ids": [[7, 8]],
    "remote_engine_id": "d",
    "remote_request_id": "r",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "remote_num_tokens": 7,
    "later": {"kept": 1.5},
}
TURN = Turn(json.dumps(HELD).encode(), "d", 7, 4, prompt_digest(PROMPT))
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "said"},
        {"role": "user", "content": "next"},
    ],
    "tools": [{"type": "function"}],
    "chat_template_kwargs": {"a": 1},
    "max_tokens": 9,
    "stream": True,
}
NOTHING: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
HANDOFF = {"do_remote_prefill": True, "remote_block_ids": [[1]], "remote_engine_id": "p"}
HANDOFF |= {"remote_host": "10.0.0.3", "remote_port": 5601}


def call_with(turn: Turn | None) -> Call:
    call = call_of(json.dumps(BODY).encode(), "chat_completions", ((b"authorization", b"Bearer k"),))
    talk = conversation(call.body, call.headers, call.path, b"s")
    assert talk is not None
    return replace(call, conversation=replace(talk, turn=turn, answer="said" if turn else ""))


def tokens(ids: Any) -> Reply:
    return reply_of(json.dumps({"count": 1, "tokens": ids}).encode())


def prefilled(**more: Any) -> Reply:
    return reply_of(json.dumps({"prompt_token_ids": WHOLE, "kv_transfer_params": HANDOFF, **more}).encode())


def plan(call: Call) -> Any:
    return nixlv2.plan(call, route_of(), OPTIONS)


def params_of(leg: Leg) -> Any:
    assert leg.content is not None
    return json.loads(leg.content)["kv_transfer_params"]


def leg_of(role: Role = Role.PREFILL) -> Leg:
    return Leg(role, PREFILLER.endpoint, b"POST", b"/", (), b"", timeout_s=2.0)


def refused(status: int) -> LegRefused:
    return LegRefused(leg_of(), Reply(status, b"", (), b"{}", reply_of(b"{}").body))


def test_what_is_proven_is_read_by_the_prefiller_and_the_leg_is_sent_once() -> None:
    call = call_with(TURN)
    played = play(plan(call), tokens(WHOLE), tokens(SAID), prefilled())
    ask, prefill = played.steps
    assert isinstance(ask, Ask)
    assert [(leg.role, leg.target, leg.method, leg.path) for leg in ask.legs] == [
        (Role.TOKENIZE, DECODER, b"POST", b"/tokenize")
    ] * 2
    assert [json.loads(leg.content or b"") for leg in ask.legs] == [
        {name: BODY[name] for name in ("model", "messages", "tools", "chat_template_kwargs")},
        {"model": "m", "prompt": "said", "add_special_tokens": False},
    ]
    assert all(leg.timeout_s and (b"authorization", b"Bearer k") in leg.headers for leg in ask.legs)
    assert isinstance(prefill, Ask)
    [leg] = prefill.legs
    assert (leg.role, leg.reads) == (Role.PREFILL, "d")
    assert params_of(leg) == {**NOTHING, **HELD}
    assert json.loads(leg.content or b"")["return_token_ids"] is True
    assert params_of(played.deliver.leg) == HANDOFF
    assert "return_token_ids" not in json.loads(played.deliver.leg.content or b"")


def test_this_turn_is_kept_in_its_turn() -> None:
    call = call_with(None)
    keep = play(plan(call), prefilled()).deliver.keep
    assert keep is not None
    assert (keep.conversation, keep.prompt_tokens) == (call.conversation, len(WHOLE))
    assert keep.prompt_digest == prompt_digest(WHOLE)


@pytest.mark.parametrize("ids", [None, [], "x", [1, "2"], [[1]]])
def test_unless_the_prefiller_does_not_tell_the_prompts_tokens(ids: Any) -> None:
    played = play(plan(call_with(None)), prefilled(prompt_token_ids=ids))
    assert played.deliver.keep is None
    assert params_of(played.deliver.leg) == HANDOFF


@pytest.mark.parametrize(
    "answers",
    [
        (tokens([*PROMPT, 5, *SAID, 98]), tokens(SAID)),
        (tokens(WHOLE), tokens([11, 12, 14])),
        (tokens(WHOLE), tokens(None)),
        (reply_of(b"{}"), tokens(SAID)),
        (tokens("no ids"), tokens(SAID)),
    ],
)
def test_what_is_not_proven_is_computed(answers: tuple[Reply, Reply]) -> None:
    played = play(plan(call_with(TURN)), *answers, prefilled())
    prefill = played.legs[2]
    assert (prefill.reads, params_of(prefill)) == (None, NOTHING)


@pytest.mark.parametrize(
    "failure",
    [
        UnusableAnswer(leg_of(Role.TOKENIZE)),
        EngineSilent(leg_of(Role.TOKENIZE)),
        EngineUnreachable(leg_of(Role.TOKENIZE)),
    ],
)
def test_so_is_what_the_decoder_cannot_say(failure: LegFailed) -> None:
    played = play(plan(call_with(TURN)), failure, tokens(SAID), prefilled())
    assert params_of(played.legs[2]) == NOTHING
    assert params_of(played.deliver.leg) == HANDOFF


@pytest.mark.parametrize("status", [500, 503])
def test_a_read_that_fails_is_followed_by_a_prefill_that_computes(status: int) -> None:
    played = play(plan(call_with(TURN)), tokens(WHOLE), tokens(SAID), refused(status), prefilled())
    first, second = played.legs[2:4]
    assert (first.reads, second.reads) == ("d", None)
    assert params_of(second) == NOTHING
    assert params_of(played.deliver.leg) == HANDOFF


@pytest.mark.parametrize(
    "failure", [refused(400), refused(429), EngineDied(leg_of()), EngineUnreachable(leg_of())]
)
def test_other_failures_of_the_prefiller_are_the_clients(failure: LegFailed) -> None:
    with pytest.raises(LegFailed) as raised:
        play(plan(call_with(TURN)), tokens(WHOLE), tokens(SAID), failure)
    assert raised.value is failure


def test_without_the_feature_nothing_is_added() -> None:
    call = replace(call_with(None), conversation=None)
    played = play(plan(call), prefilled())
    assert "return_token_ids" not in json.loads(played.legs[0].content or b"")
    assert played.deliver.keep is None
