"""A chat's next turn: the prefiller reads from the decoder what that holds of the last one (NIXL)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.vllm.asking import APIS, Body, Usage, fresh_text, post
from tests.vllm.counters import EXTERNAL_HIT_TOKENS, NIXL_BYTES, NIXL_READS, Risen
from tests.vllm.engines import BLOCK_TOKENS, KV_BYTES_PER_TOKEN
from tests.vllm.figures import Figures
from tests.vllm.pods import Pod, Pods, chosen_kind
from tests.vllm.scenes import PREFILLER, Lines, alone

pytestmark = pytest.mark.skipif(
    chosen_kind() == "embedded", reason="the embedded engine reads in one direction only"
)

CHAT = APIS["chat"]
FIRST_TOKENS = 80
"""Of the first answer: vLLM reads from a decoder only what is 64 tokens or more (kv_recompute_threshold)."""
NEXT_TOKENS = 12
"""Of the next one."""
# Words of the tokenizer's own, each one token with its blank: what a random model says of these is spelled by
# the tokenizer as the model said it, as a trained model's answers are.
WORDS = (
    *("the", "pod", "holds", "prefix", "prompt", "user", "asks", "answers", "system", "tone", "and", "tool"),
    *("lends", "hand", "of", "keys", "values", "travel", "from", "one", "engine", "to", "another", "over"),
    *("network", "when", "prefill", "has", "first", "token", "two", "three", "four", "five", "six", "seven"),
)

Message = dict[str, Any]


@pytest.fixture
def words(reuse: Pods) -> list[int]:
    """Their token ids."""
    found: list[int] = []
    for word in WORDS:
        ask = {"model": "tiny", "prompt": f" {word}", "add_special_tokens": False}
        tokens = post(reuse["d"].engine_url, "/tokenize", ask).json["tokens"]
        found += tokens if len(tokens) == 1 else []
    assert len(found) > 10
    return found


def body_of(messages: list[Message], words: list[int], tokens: int, *, stream: bool = False) -> Body:
    body = CHAT.body(0, stream=stream, messages=messages, max_tokens=tokens)
    return {**body, "allowed_token_ids": words}


def asked(d: Pod, p: Pod, body: Body, headers: Mapping[str, str] | None = None) -> tuple[str, Usage]:
    """Text and usage of an answer through both pods."""
    answer = post(d.url, CHAT.path, body, {PREFILLER: p.engine_netloc, **(headers or {})})
    assert answer.status == 200, answer.content
    return CHAT.text_of(answer), CHAT.usage_of(answer)


def continued(messages: list[Message], text: str) -> list[Message]:
    return [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "go on please"}]


def opening() -> list[Message]:
    return [{"role": "user", "content": fresh_text(20)}]


def test_the_next_turns_prefiller_reads_what_the_decoder_generated(
    reuse: Pods, words: list[int], figures: Figures
) -> None:
    p, d = reuse["p"], reuse["d"]
    messages = opening()
    text, before = asked(d, p, body_of(messages, words, FIRST_TOKENS))
    body = body_of(continued(messages, text), words, NEXT_TOKENS)
    at_p, lines = Risen(p.engine_url), Lines(d.log_name)

    text, usage = asked(d, p, body)

    held_tokens = before.prompt_tokens + FIRST_TOKENS - 1
    cached_tokens = before.prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    blocks = -(-held_tokens // BLOCK_TOKENS) - cached_tokens // BLOCK_TOKENS
    read_bytes = at_p.settled(NIXL_BYTES, blocks * BLOCK_TOKENS * KV_BYTES_PER_TOKEN)
    hits = at_p.by(EXTERNAL_HIT_TOKENS)
    figures.note(before=before, usage=usage, p=at_p.all(), hits=hits)
    assert read_bytes == blocks * BLOCK_TOKENS * KV_BYTES_PER_TOKEN
    assert hits == held_tokens - cached_tokens
    assert usage.cached_tokens == held_tokens
    legs = lines.last()["legs"]
    assert [leg["role"] for leg in legs] == ["tokenize", "tokenize", "prefill", "decode"]
    assert legs[2]["reads"]
    # The decoder alone has the same KV: its own. An engine that computes the answer's tokens as a prompt sums
    # in another order, and with a random model that turns near ties (seen without any read, too).
    assert text == alone(d, CHAT, body) != ""


def test_neither_another_tenant_nor_a_second_request_reads_it(
    reuse: Pods, words: list[int], figures: Figures
) -> None:
    p, d = reuse["p"], reuse["d"]
    messages = opening()
    mine, other = {"authorization": "Bearer a"}, {"authorization": "Bearer b"}
    text, _ = asked(d, p, body_of(messages, words, FIRST_TOKENS), mine)
    body = body_of(continued(messages, text), words, NEXT_TOKENS)
    reads: list[bool] = []
    for tenant in (other, mine, mine):
        lines = Lines(d.log_name)
        asked(d, p, body, tenant)
        reads.append(any("reads" in leg for leg in lines.last()["legs"]))
    figures.note(reads=reads)
    assert reads == [False, True, False]


def test_a_streamed_turn_is_answered_and_read_where_the_stream_tells_of_blocks(
    reuse: Pods, words: list[int], figures: Figures
) -> None:
    p, d = reuse["p"], reuse["d"]
    messages = opening()
    answer = post(
        d.url, CHAT.path, body_of(messages, words, FIRST_TOKENS, stream=True), {PREFILLER: p.engine_netloc}
    )
    told = any(event.get("kv_transfer_params") for event in answer.events)
    body = body_of(continued(messages, CHAT.text_of(answer)), words, NEXT_TOKENS, stream=True)
    at_p = Risen(p.engine_url)

    text, _ = asked(d, p, body)

    figures.note(told=told, p=at_p.all())
    assert (at_p.by(NIXL_READS) > 0) == told
    assert text
