"""Several prompts or choices in one request: vLLM copies its params to each, so not all can share them."""

from __future__ import annotations

from typing import Any

from tests.vllm.asking import APIS, Answer, fresh_ids, post, pulled_tokens
from tests.vllm.counters import NIXL_BYTES, P2P_READ_BYTES, Risen
from tests.vllm.engines import KV_BYTES_PER_TOKEN
from tests.vllm.figures import Figures
from tests.vllm.pods import Pods
from tests.vllm.scenes import PREFILLER, PROMPT_TOKENS, SOURCE, Lines, computed_on

COMPLETIONS = APIS["completions"]
# Choices that differ, and are the same from run to run.
CHOICES: dict[str, Any] = {"n": 3, "temperature": 1, "seed": 7}


def texts_of(answer: Answer) -> list[Any]:
    return [choice["text"] for choice in answer.json["choices"]]


def test_two_prompts_get_no_pull_and_the_engine_lives(tiers: Pods, figures: Figures) -> None:
    a, b = tiers["a"], tiers["b"]
    prompts = [fresh_ids(PROMPT_TOKENS), fresh_ids(PROMPT_TOKENS)]
    for prompt in prompts:
        computed_on(a, COMPLETIONS, COMPLETIONS.body(0, prompt=prompt))
    body = COMPLETIONS.body(0, prompt=prompts)
    expected = texts_of(post(a.engine_url, COMPLETIONS.path, body))
    risen, lines = Risen(b.engine_url), Lines(b.log_name)

    answer = post(b.url, COMPLETIONS.path, body, {SOURCE: a.netloc})

    figures.note(status=answer.status, reason=lines.last()["reason"], b=risen.all())
    assert (answer.status, lines.last()["reason"]) == (200, "several_prompts")
    assert risen.by(P2P_READ_BYTES) == 0
    assert texts_of(answer) == expected


def test_choices_share_one_pull(tiers: Pods, figures: Figures) -> None:
    a, b = tiers["a"], tiers["b"]
    body = COMPLETIONS.body(PROMPT_TOKENS, **CHOICES)
    expected = texts_of(computed_on(a, COMPLETIONS, body))
    risen = Risen(b.engine_url)

    answer = post(b.url, COMPLETIONS.path, body, {SOURCE: a.netloc})

    moved = risen.settled(P2P_READ_BYTES, pulled_tokens(PROMPT_TOKENS) * KV_BYTES_PER_TOKEN)
    figures.note(status=answer.status, b=risen.all())
    assert moved == pulled_tokens(PROMPT_TOKENS) * KV_BYTES_PER_TOKEN
    assert (answer.status, texts_of(answer)) == (200, expected)


def test_choices_share_what_a_prefiller_keeps_in_the_p2p_tier(tiers: Pods, figures: Figures) -> None:
    p, d = tiers["a"], tiers["b"]
    body = COMPLETIONS.body(PROMPT_TOKENS, **CHOICES)
    risen = Risen(d.engine_url)

    answer = post(d.url, COMPLETIONS.path, body, {PREFILLER: p.engine_netloc})

    moved = risen.settled(P2P_READ_BYTES, pulled_tokens(PROMPT_TOKENS) * KV_BYTES_PER_TOKEN)
    figures.note(status=answer.status, d=risen.all())
    assert moved == pulled_tokens(PROMPT_TOKENS) * KV_BYTES_PER_TOKEN
    assert (answer.status, texts_of(answer)) == (200, texts_of(post(p.engine_url, COMPLETIONS.path, body)))


def test_over_nixl_several_prompts_are_decoded_here(nixl: Pods, figures: Figures) -> None:
    p, d = nixl["p"], nixl["d"]
    # Handed over, the second prompt would end the decoder: it has more blocks than the first.
    body = COMPLETIONS.body(0, prompt=[fresh_ids(100), fresh_ids(300)])
    risen, lines = Risen(d.engine_url), Lines(d.log_name)
    answer = post(d.url, COMPLETIONS.path, body, {PREFILLER: p.engine_netloc})
    figures.note(status=answer.status)
    assert (answer.status, lines.last()["reason"]) == (200, "several_prompts")
    assert [leg["role"] for leg in lines.last()["legs"]] == ["decode"]
    assert risen.by(NIXL_BYTES) == 0
    assert texts_of(answer) == texts_of(post(p.engine_url, COMPLETIONS.path, body))
