"""Which request extends which turn, and what proves that blocks may be read (`sidecar.turns`)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.body import Body
from sidecar.headers import Headers
from sidecar.turns import Conversation, Keep, Turn, conversation, prompt_digest, proven, turn_of

SECRET = b"s" * 64
PATH = b"/v1/chat/completions"
USER = {"role": "user", "content": "What is a block?"}
ANSWER = {"role": "assistant", "content": "Some tokens' KV."}
NEXT = {"role": "user", "content": "How many?"}
FIRST: dict[str, Any] = {"model": "m", "messages": [USER], "max_tokens": 5}
SECOND: dict[str, Any] = {"model": "m", "messages": [USER, ANSWER, NEXT], "max_tokens": 9, "stream": True}


def talk(body: Any, headers: Headers = (), path: bytes = PATH, secret: bytes = SECRET) -> Conversation | None:
    return conversation(Body.parse(json.dumps(body).encode()), headers, path, secret)


def kept_under(
    body: Any,
    headers: Headers = (),
    path: bytes = PATH,
    secret: bytes = SECRET,
    answer: str = "Some tokens' KV.",
) -> bytes:
    turn = talk(body, headers, path, secret)
    assert turn is not None
    return turn.key(answer)


def looked_for(body: Any, headers: Headers = (), path: bytes = PATH, secret: bytes = SECRET) -> list[bytes]:
    turn = talk(body, headers, path, secret)
    assert turn is not None
    return [earlier.key for earlier in turn.earlier]


def test_the_next_turn_looks_for_the_key_under_which_the_last_one_is_kept() -> None:
    assert looked_for(SECOND) == [kept_under(FIRST)]


@pytest.mark.parametrize(
    "sent_back",
    [
        {**ANSWER, "refusal": None, "tool_calls": [], "audio": None, "annotations": []},
        {"content": ANSWER["content"], "role": "assistant", "reasoning": ""},
    ],
)
def test_an_answer_sent_back_with_its_empty_fields_is_the_same(sent_back: Any) -> None:
    assert looked_for({**SECOND, "messages": [USER, sent_back, NEXT]}) == [kept_under(FIRST)]


def test_what_steers_the_sampling_may_change_between_turns() -> None:
    steered = {"temperature": 0.3, "top_p": 1, "seed": 7, "stop": ["x"], "logprobs": True, "max_tokens": 1}
    assert looked_for({**SECOND, **steered}) == [kept_under(FIRST)]


@pytest.mark.parametrize(
    "other",
    [
        {"model": "lora-1"},
        {"cache_salt": "tenant"},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tool_choice": "none"},
        {"chat_template": "{{ messages }}"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "low"},
        {"documents": [{"text": "d"}]},
        {"response_format": {"type": "json_object"}},
        {"user": "somebody"},
        {"a_field_of_tomorrow": 1},
        {"messages": [{**USER, "content": "What is a block? "}, ANSWER, NEXT]},
        {"messages": [{**USER, "name": "n"}, ANSWER, NEXT]},
        {"messages": [{"role": "system", "content": "s"}, USER, ANSWER, NEXT]},
        {"messages": [USER, {**ANSWER, "content": "Some tokens' KV"}, NEXT]},
        {"messages": [USER, {**ANSWER, "tool_calls": [{"id": "1"}]}, NEXT]},
        {"messages": [USER, {**ANSWER, "reasoning": "hm"}, NEXT]},
        {"messages": [ANSWER, NEXT]},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_request_that_differs_in_what_shapes_the_prompt_finds_nothing(other: Any) -> None:
    assert kept_under(FIRST) not in looked_for({**SECOND, **other})


@pytest.mark.parametrize(
    "name", [b"Authorization", b"x-api-key", b"api-key", b"openai-organization", b"openai-project"]
)
def test_another_tenant_finds_nothing(name: bytes) -> None:
    mine, other = ((name, b"Bearer a"),), ((name, b"Bearer b"),)
    assert looked_for(SECOND, mine) == [kept_under(FIRST, mine)]
    for stranger in (other, (), (*mine, *mine)):
        assert kept_under(FIRST, mine) not in looked_for(SECOND, stranger)


def test_another_path_or_another_process_finds_nothing() -> None:
    assert kept_under(FIRST) not in looked_for(SECOND, path=PATH + b"?v=2")
    assert kept_under(FIRST) not in looked_for(SECOND, secret=b"t" * 64)


def test_no_message_can_pass_for_two() -> None:
    joined = {**USER, "content": 'a"}\n{"content":"b'}
    apart = [{**USER, "content": "a"}, {**USER, "content": "b"}]
    assert kept_under({**FIRST, "messages": [joined]}) != kept_under({**FIRST, "messages": apart})


def test_a_request_without_a_new_message_extends_nothing() -> None:
    assert looked_for({**SECOND, "messages": [USER, ANSWER]}) == []


def test_the_latest_answers_are_looked_for_first_and_only_a_few() -> None:
    turns = [{**ANSWER, "content": f"a{number}"} for number in range(9)]
    turn = talk({**FIRST, "messages": [m for answer in turns for m in (USER, answer)] + [NEXT]})
    assert turn is not None
    assert [earlier.answer for earlier in turn.earlier] == ["a8", "a7", "a6", "a5"]


@pytest.mark.parametrize(
    "body",
    [
        {**FIRST, "n": 2},
        {**FIRST, "truncate_prompt_tokens": 100},
        {**FIRST, "continue_final_message": True},
        {**FIRST, "add_generation_prompt": False},
        {**FIRST, "echo": True},
        {**FIRST, "use_beam_search": True},
        {**FIRST, "prompt_logprobs": 0},
        {**FIRST, "messages": []},
        {**FIRST, "messages": "hi"},
        {**FIRST, "messages": [1]},
        {**FIRST, "messages": [{"content": "no role"}]},
        {
            **FIRST,
            "messages": [{**USER, "content": [{"type": "image_url", "image_url": {"url": "http://i"}}]}],
        },
        {**FIRST, "messages": [{**USER, "content": 5}]},
        {"model": "m"},
    ],
)
def test_what_cannot_be_followed_is_no_conversation(body: Any) -> None:
    assert talk(body) is None


def test_a_lone_surrogate_is_no_conversation() -> None:
    raw = rb'{"model":"m","messages":[{"role":"user","content":"\ud83d"}]}'
    assert conversation(Body.parse(raw), (), PATH, SECRET) is None


PROMPT = [1, 2, 3, 4]
SAID = [11, 12, 13]


def turn_with(tokens: int, prompt: list[int] = PROMPT) -> Turn:
    return Turn(b"{}", "e", tokens, len(prompt), prompt_digest(prompt))


@pytest.mark.parametrize(
    ("tokens", "prompt"),
    [(7, [*PROMPT, *SAID, 98, 99]), (6, [*PROMPT, *SAID, 98, 99])],
    ids=["an end token followed", "the answer was cut"],
)
def test_blocks_of_the_first_tokens_are_proven(tokens: int, prompt: list[int]) -> None:
    assert proven(turn_with(tokens), SAID, prompt)


@pytest.mark.parametrize(
    ("tokens", "said", "prompt"),
    [
        (7, SAID, [1, 2, 3, 5, *SAID, 98]),
        (7, SAID, [*PROMPT, 11, 12, 14, 98]),
        (7, SAID, [*PROMPT, 50, *SAID, 98]),
        (7, SAID, [*PROMPT, *SAID]),
        (8, SAID, [*PROMPT, *SAID, 98, 99]),
        (5, SAID, [*PROMPT, *SAID, 98, 99]),
        (4, SAID, [*PROMPT, *SAID, 98, 99]),
        (7, [], [*PROMPT, *SAID, 98]),
        (7, SAID, []),
        (3, [], [*PROMPT, 98]),
    ],
    ids=[
        "another prompt",
        "another answer",
        "a template that adds a token before the answer",
        "nothing new",
        "more computed than was said",
        "fewer tokens in the model's spelling than in the tokenizer's",
        "none of the answer",
        "the answer's tokens are unknown",
        "the prompt's tokens are unknown",
        "less than the prompt",
    ],
)
def test_whatever_else_is_not_proven(tokens: int, said: list[int], prompt: list[int]) -> None:
    assert not proven(turn_with(tokens), said, prompt)


# As vLLM 0.32 answered with bidirectional_kv_xfer.
PARAMS: dict[str, Any] = {
    "do_remote_prefill": False,
    "do_remote_decode": True,
    "remote_block_ids": [[100, 101, 102, 103]],
    "remote_engine_id": "1f329d4b",
    "remote_request_id": "chatcmpl-9",
    "remote_host": "127.0.0.2",
    "remote_port": 18616,
    "tp_size": 1,
    "remote_num_tokens": 106,
    "remote_blocks_expiry_time": 12846.25,
    "transfer_mode": "pull",
    "a_key_of_tomorrow": {"kept": 1},
}


def keep_of(body: Any = FIRST) -> Keep:
    turn = talk(body)
    assert turn is not None
    return Keep(turn, 100, prompt_digest(list(range(100))))


def test_a_turn_is_all_that_the_decoder_said_less_the_roles() -> None:
    turn = turn_of(keep_of(), PARAMS)
    assert turn is not None
    kept = {name: value for name, value in PARAMS.items() if not name.startswith("do_")}
    assert json.loads(turn.params) == kept
    assert (turn.engine_id, turn.tokens, turn.prompt_tokens) == ("1f329d4b", 106, 100)
    assert turn.prompt_digest == prompt_digest(list(range(100)))


@pytest.mark.parametrize(
    "other",
    [
        {"do_remote_decode": False},
        {"do_remote_decode": 1},
        {"remote_engine_id": ""},
        {"remote_request_id": None},
        {"remote_host": 5},
        {"remote_host": ""},
        {"remote_host": "a b"},
        {"remote_port": "1"},
        {"remote_port": True},
        {"remote_port": 65536},
        {"remote_block_ids": []},
        {"remote_num_tokens": 0},
        {"remote_num_tokens": None},
        {"transfer_mode": "push"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_params_by_which_nobody_can_read_make_no_turn(other: Any) -> None:
    assert turn_of(keep_of(), {**PARAMS, **other}) is None


def test_a_request_that_is_too_much_to_look_through_is_no_turn() -> None:
    assert talk({**FIRST, "logit_bias": [0] * 100_000}) is None
    assert talk({**FIRST, "logit_bias": [0] * 90_000}) is not None
