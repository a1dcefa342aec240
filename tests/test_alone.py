"""Which requests get no handoff or no pull, as real vLLM 0.32 engines showed."""

from __future__ import annotations

from time import process_time

import pytest

from sidecar.alone import Alone, has_several_prompts, why_alone, why_no_pull
from sidecar.api import APIS
from sidecar.body import Body
from sidecar.routing import NoPull

BY_NAME = {api.name: api for api in APIS}
PROMPTS = [
    '"prompt":["a","b"]',
    '"prompt":[ [1,2],[3]]',
    '"prompt":[\n  "a",\n  "b"\n]',
    '"prompt_embeds":["AA==","AA=="]',
    '"prompt":"a","prompt_embeds":"AA=="',
    '"prompt":["\\ud83d","b"]',
]
ONE_PROMPT = [
    '"prompt":"a"',
    '"prompt":"[1]"',
    '"prompt":["a"]',
    '"prompt":[[1,2]]',
    '"prompt":[1,2,3]',
    '"prompt":[ -1, 2]',
    '"prompt":[]',
    '"prompt":null',
    '"prompt_embeds":"AA=="',
    '"prompt_embeds":null,"prompt":"a"',
]
ALONE = [
    *[("completions", prompts, Alone.SEVERAL_PROMPTS) for prompts in PROMPTS],
    ("chat_completions", '"use_beam_search":true,"n":2', Alone.BEAM_SEARCH),
    ("completions", '"use_beam_search":true', Alone.BEAM_SEARCH),
    ("chat_completions", '"prompt_logprobs":0', Alone.PROMPT_LOGPROBS),
    ("completions", '"prompt_logprobs":1', Alone.PROMPT_LOGPROBS),
    ("vllm_generate", '"sampling_params":{"prompt_logprobs":1}', Alone.PROMPT_LOGPROBS),
    ("vllm_generate", '"sampling_params":{"prompt_logprob_token_ids":[1]}', Alone.PROMPT_LOGPROBS),
    ("completions", '"echo":true,"logprobs":0', Alone.PROMPT_LOGPROBS),
    ("chat_completions", '"echo":true', Alone.PROMPT_LOGPROBS),
]
TOGETHER = [
    *[("completions", prompt) for prompt in ONE_PROMPT],
    *[(name, '"n":4') for name in BY_NAME],
    ("vllm_generate", '"sampling_params":{"n":2}'),
    ("chat_completions", '"n":null,"best_of":3,"use_beam_search":false,"prompt_logprobs":null,"echo":false'),
    ("chat_completions", '"echo":true,"top_logprobs":null'),
    ("chat_completions", '"prompt":["a","b"],"logprobs":true,"top_logprobs":3'),
    ("completions", '"echo":true'),
    ("completions", '"logprobs":3,"echo":false,"best_of":3'),
    ("vllm_generate", '"sampling_params":{"n":1,"logprobs":2}'),
    ("vllm_generate", '"sampling_params":null'),
    ("vllm_generate", '"sampling_params":[]'),
    ("vllm_generate", '"n":2,"use_beam_search":true'),
    ("responses", '"n":2,"prompt_logprobs":1,"use_beam_search":true'),
    ("messages", '"n":2,"prompt_logprobs":1,"use_beam_search":true'),
    ("sglang_generate", '"sampling_params":{"n":2},"text":["a","b"]'),
]


def body_of(fields: str) -> Body:
    return Body.parse(b'{"model":"m",' + fields.encode() + b"}")


@pytest.mark.parametrize(("name", "fields", "why"), ALONE)
def test_a_request_that_no_prefiller_can_hand_over_says_why(name: str, fields: str, why: Alone) -> None:
    assert why_alone(BY_NAME[name], body_of(fields)) is why


@pytest.mark.parametrize(("name", "fields"), TOGETHER)
def test_any_other_request_is_handed_over_and_pulled_for(name: str, fields: str) -> None:
    assert why_alone(BY_NAME[name], body_of(fields)) is None
    assert why_no_pull(BY_NAME[name], body_of(fields)) is None


@pytest.mark.parametrize(("name", "fields", "why"), ALONE)
def test_what_cannot_be_handed_over_cannot_be_pulled_for_either(name: str, fields: str, why: Alone) -> None:
    assert why_no_pull(BY_NAME[name], body_of(fields)) is NoPull(why.value)


@pytest.mark.parametrize(
    ("prompts", "several"),
    [
        (b"[%b]" % b",".join([b'["a"]'] * 200_000), True),
        (b"[%b]" % b",".join([b'"\\ud83d"'] * 200_000), True),
        (b"[[%b]]" % b",".join([b"7"] * 200_000), False),
        (b'["\\ud83d"]', False),
        (b"[ \n ]", False),
        (b"[" * 5000 + b"]" * 5000, True),
    ],
    ids=["lists", "lone surrogates", "one of many tokens", "one lone surrogate", "none", "deep"],
)
def test_prompts_are_told_from_one_without_being_decoded(prompts: bytes, several: bool) -> None:
    # Not parsed as a body, which is not that deep.
    assert has_several_prompts(BY_NAME["completions"], Body({"prompt": prompts})) is several


def test_a_list_that_is_mostly_white_space_costs_next_to_nothing() -> None:
    space = b" " * 20_000_000
    began_s = process_time()
    for prompts in (b'[%b"a"]' % space, b"[%b]" % space):
        assert not has_several_prompts(BY_NAME["completions"], Body({"prompt": prompts}))
    assert process_time() - began_s < 0.5  # seconds; going back over each blank took 0.75
