"""Plans played without engines: every connector's legs in their order, with the condition of each."""

from __future__ import annotations

import pytest

from sidecar.connectors import CONNECTORS
from sidecar.debug.playing import played
from sidecar.planning import Planner
from sidecar.routing import Route
from tests.connectors.play import DECODER, OPTIONS, PREFILLER, SOURCE, call_of, route_of

ASKED = "sent, and its answer awaited"
BESIDE = "sent, and run beside what follows"
GIVEN = "sent, and its answer given to the client"
OFFERED = "sent, and its answer streamed to the client unless it is a refusal"
REFUSED = "the decoder's answer says that it has too little of the prompt"
FAILED = "no prefiller can be had, and the client has no byte yet"
CHAT = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":90,"cache_hit_threshold":0.5}'

Legs = list[tuple[str, str, str | None]]


def legs_of(connector: str, route: Route, **options: object) -> Legs:
    planner = Planner(CONNECTORS[connector], OPTIONS, **options)  # type: ignore[arg-type]
    story = played(planner.plan(call_of(CHAT, "chat_completions"), route))
    return [(sent.leg.role, sent.how, sent.when) for sent in story.legs]


@pytest.mark.parametrize(
    ("connector", "legs"),
    [
        ("nixlv2", [("prefill", ASKED, None), ("decode", GIVEN, None)]),
        ("offloading", [("prefill", ASKED, None), ("decode", GIVEN, None)]),
        ("moriio", [("prefill", ASKED, None), ("decode", GIVEN, None)]),
        ("mooncake", [("lookup", ASKED, None), ("prefill", BESIDE, None), ("decode", GIVEN, None)]),
        ("sglang", [("prefill", BESIDE, None), ("decode", GIVEN, None)]),
        (
            "shared-storage",
            [("decode", OFFERED, None), ("prefill", ASKED, REFUSED), ("decode", GIVEN, REFUSED)],
        ),
    ],
)
def test_every_connector_shows_its_legs_in_their_order(connector: str, legs: Legs) -> None:
    assert legs_of(connector, route_of()) == legs


def test_a_request_without_a_prefiller_has_one_leg_and_no_placeholder() -> None:
    planner = Planner(CONNECTORS["offloading"], OPTIONS)
    story = played(planner.plan(call_of(CHAT, "chat_completions"), Route(DECODER, source=SOURCE)))
    [sent] = story.legs
    assert (sent.leg.role, sent.how, story.answered) == ("decode", GIVEN, False)
    assert sent.leg.pull is not None


def test_what_stands_in_for_a_prefiller_is_shown_with_its_condition() -> None:
    legs = legs_of("nixlv2", route_of(), local_after_failure=True)
    assert legs[2:] == [("decode", "sent instead", FAILED)]


def test_a_decode_with_placeholders_says_where_they_come_from() -> None:
    planner = Planner(CONNECTORS["nixlv2"], OPTIONS)
    story = played(planner.plan(call_of(CHAT, "chat_completions"), route_of()))
    content = story.legs[-1].leg.content
    assert content is not None
    assert b'"remote_engine_id":"<from the prefiller\'s answer>"' in content
    assert b'"remote_host":"from-the-prefillers-answer","remote_port":1,' in content
    assert story.answered


def test_of_a_chunked_decode_the_first_leg_is_shown() -> None:
    planner = Planner(CONNECTORS["offloading"], OPTIONS, chunk_tokens=32)
    story = played(planner.plan(call_of(CHAT, "chat_completions"), Route(DECODER)))
    [sent] = story.legs
    assert (sent.leg.chunk is not None, story.chunked) == (True, True)


def test_a_request_that_no_prefiller_can_hand_over_says_why() -> None:
    planner = Planner(CONNECTORS["nixlv2"], OPTIONS)
    story = played(planner.plan(call_of(b'{"prompt":["a","b"]}'), route_of()))
    assert ([sent.leg.target for sent in story.legs], story.alone) == ([DECODER], "several_prompts")
    assert PREFILLER.endpoint != DECODER
