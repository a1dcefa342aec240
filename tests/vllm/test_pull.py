"""A pod pulls a prefix that another has computed: vLLM's P2P tier, decode only."""

from __future__ import annotations

from time import sleep

import pytest

from tests.vllm.asking import APIS, every_api, post, pulled_tokens
from tests.vllm.counters import COMPUTED_TOKENS, P2P_READ_BYTES, PEER_TOKENS, QUIET_S, Risen
from tests.vllm.engines import KV_BYTES_PER_TOKEN
from tests.vllm.figures import Figures
from tests.vllm.pods import Pods
from tests.vllm.scenes import PROMPT_TOKENS, SOURCE, computed_on


@pytest.mark.parametrize(("name", "stream"), list(every_api()))
def test_a_named_source_gives_its_blocks_and_the_text_stays_the_same(
    name: str, stream: bool, tiers: Pods, figures: Figures
) -> None:
    a, b = tiers["a"], tiers["b"]
    api = APIS[name]
    body = api.body(PROMPT_TOKENS, stream=stream)
    alone = computed_on(a, api, body)
    risen = Risen(b.engine_url)

    answer = post(b.url, api.path, body, {SOURCE: a.netloc})

    usage = api.usage_of(answer)
    expected = pulled_tokens(usage.prompt_tokens)
    moved = risen.settled(P2P_READ_BYTES, expected * KV_BYTES_PER_TOKEN)
    figures.note(status=answer.status, usage=usage, b=risen.all())
    assert answer.status == 200
    assert answer.streamed == stream
    assert api.text_of(answer) == api.text_of(alone) != ""
    assert usage.cached_tokens == expected
    assert moved == expected * KV_BYTES_PER_TOKEN
    assert risen.by(COMPUTED_TOKENS) == usage.prompt_tokens - expected
    assert risen.by(PEER_TOKENS) == expected


@pytest.mark.parametrize(("name", "stream"), list(every_api()))
def test_without_the_header_nothing_moves(name: str, stream: bool, tiers: Pods, figures: Figures) -> None:
    a, b = tiers["a"], tiers["b"]
    api = APIS[name]
    body = api.body(PROMPT_TOKENS, stream=stream)
    alone = computed_on(a, api, body)
    risen = Risen(b.engine_url)

    answer = post(b.url, api.path, body)

    sleep(QUIET_S)
    usage = api.usage_of(answer)
    figures.note(status=answer.status, usage=usage, b=risen.all())
    assert answer.status == 200
    assert api.text_of(answer) == api.text_of(alone) != ""
    assert usage.cached_tokens == 0
    assert risen.by(P2P_READ_BYTES) == 0
    assert risen.by(COMPUTED_TOKENS) == usage.prompt_tokens
