"""The memory of turns: once, for a while, within its bounds (`sidecar.recall`)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.call import Call
from sidecar.recall import Bounds, Turns
from sidecar.turns import Keep, Turn, prompt_digest
from tests.connectors.play import SOURCE, call_of, route_of

SECRET = b"s" * 64
ROUTE = route_of()


class Clock:
    """A monotonic clock that the test sets."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def request(user: str, *more: str, api: str = "chat_completions") -> Call:
    """User and assistant in turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate((user, *more))]
    return call_of(json.dumps({"model": "m", "messages": messages}).encode(), api)


def turn_named(engine_id: str = "e", size_bytes: int = 0) -> Turn:
    return Turn(b"{}" + b" " * size_bytes, engine_id, 5, 3, prompt_digest([1, 2, 3]))


def memory(clock: Clock, entries: int = 10, **more: Any) -> Turns:
    return Turns(Bounds(**{"ttl_s": 300.0, "entries": entries, "bytes": 1 << 20, **more}), SECRET, clock)


def remember(turns: Turns, user: str, turn: Turn, params: dict[str, Any] | None = None) -> None:
    talk = turns.looked_up(request(user), ROUTE).conversation
    assert talk is not None
    turns.keep(talk.key("a"), turn, params or {})


def found(turns: Turns, user: str) -> Turn | None:
    talk = turns.looked_up(request(user, "a", "next"), ROUTE).conversation
    assert talk is not None
    return talk.turn


def test_the_next_turn_gets_the_last_one_once() -> None:
    turns, turn = memory(Clock()), turn_named()
    remember(turns, "u", turn)
    talk = turns.looked_up(request("u", "a", "next"), ROUTE).conversation
    assert talk is not None
    assert (talk.turn, talk.answer) == (turn, "a")
    assert found(turns, "u") is None
    assert turns.remembered == 0


def test_another_conversation_gets_nothing_and_takes_nothing() -> None:
    turns, turn = memory(Clock()), turn_named()
    remember(turns, "u", turn)
    assert found(turns, "v") is None
    assert found(turns, "u") == turn


def test_a_turn_is_forgotten_in_time() -> None:
    clock = Clock()
    turns = memory(clock, ttl_s=60.0)
    remember(turns, "u", turn_named())
    remember(turns, "v", turn_named())
    clock.now_s += 59.9
    assert found(turns, "u") is not None
    clock.now_s += 0.2
    assert found(turns, "v") is None
    assert turns.counts["expired"] == 1


@pytest.mark.parametrize(
    ("expiry_s", "later_s", "there"),
    [
        (1060.0, 49.9, True),
        (1060.0, 50.1, False),
        (5.0, 299.0, True),
        (90_000.0, 299.0, True),
        (90_000.0, 301.0, False),
        (None, 299.0, True),
        ("soon", 299.0, True),
    ],
)
def test_the_decoders_own_word_shortens_the_time(expiry_s: Any, later_s: float, there: bool) -> None:
    clock = Clock()
    turns = memory(clock)
    remember(turns, "u", turn_named(), {"remote_blocks_expiry_time": expiry_s})
    clock.now_s += later_s
    assert (found(turns, "u") is not None) == there


def test_blocks_that_end_within_the_margin_are_not_remembered() -> None:
    turns = memory(Clock())
    remember(turns, "u", turn_named(), {"remote_blocks_expiry_time": 1009.0})
    assert (turns.remembered, turns.counts["expired"]) == (0, 1)


def test_the_oldest_goes_when_there_are_too_many() -> None:
    turns = memory(Clock(), entries=2)
    for user in "uvw":
        remember(turns, user, turn_named())
    assert turns.remembered == 2
    assert [found(turns, user) is not None for user in "uvw"] == [False, True, True]
    assert turns.counts["evicted"] == 1


def test_or_when_they_take_too_much_memory() -> None:
    turns = memory(Clock(), bytes=2500)
    for user in "uv":
        remember(turns, user, turn_named(size_bytes=1000))
    assert [found(turns, user) is not None for user in "uv"] == [False, True]
    remember(turns, "w", turn_named(size_bytes=5000))
    assert turns.remembered == 0
    for user in "xy":
        remember(turns, user, turn_named(size_bytes=100))
    assert turns.remembered == 2


def test_what_is_over_makes_room() -> None:
    clock = Clock()
    turns = memory(clock, ttl_s=60.0)
    for user in "uvw":
        remember(turns, user, turn_named())
    clock.now_s += 61
    remember(turns, "x", turn_named())
    assert turns.remembered == 1


def test_the_same_turn_once_more_is_kept_once() -> None:
    turns, newer = memory(Clock()), turn_named("newer")
    remember(turns, "u", turn_named("older"))
    remember(turns, "u", newer)
    assert turns.remembered == 1
    assert found(turns, "u") == newer


def test_an_engine_whose_blocks_could_not_be_read_is_forgotten_whole() -> None:
    turns = memory(Clock())
    for user, engine in (("u", "gone"), ("v", "there"), ("w", "gone")):
        remember(turns, user, turn_named(engine))
    turns.forget("gone")
    assert [found(turns, user) is not None for user in "uvw"] == [False, True, False]


ANSWER: dict[str, Any] = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}],
    "kv_transfer_params": {
        "do_remote_decode": True,
        "remote_engine_id": "e",
        "remote_request_id": "r",
        "remote_host": "h",
        "remote_port": 1,
        "remote_block_ids": [[1]],
        "remote_num_tokens": 4,
    },
}


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        (ANSWER, "kept"),
        ({**ANSWER, "kv_transfer_params": None}, "answer_without_params"),
        ({**ANSWER, "kv_transfer_params": {"do_remote_decode": False}}, "params_unusable"),
        ({**ANSWER, "choices": 1}, "answer_unreadable"),
    ],
)
def test_what_came_of_an_answer_is_told_and_counted(answer: dict[str, Any], label: str) -> None:
    turns = memory(Clock())
    talk = turns.looked_up(request("u"), ROUTE).conversation
    assert talk is not None
    listening = turns.listen(Keep(talk, 3, prompt_digest([1, 2, 3])))
    listening.feed(json.dumps(answer).encode())
    assert listening.end() == label
    assert turns.counts == {label: 1}
    assert (found(turns, "u") is not None) == (label == "kept")


def test_only_chats_with_a_prefiller_are_looked_up() -> None:
    turns = memory(Clock())
    assert turns.looked_up(request("u"), route_of(prefiller=None)).conversation is None
    assert turns.looked_up(request("u", api="completions"), ROUTE).conversation is None


def test_a_source_of_the_endpoint_pickers_comes_first() -> None:
    turns, turn = memory(Clock()), turn_named()
    remember(turns, "u", turn)
    talk = turns.looked_up(request("u", "a", "next"), route_of(source=SOURCE)).conversation
    assert talk is not None
    assert talk.turn is None
    assert found(turns, "u") == turn
