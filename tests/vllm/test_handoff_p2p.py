"""One pod prefills, another decodes, and the blocks go over the P2P tier (`--kv-connector=offloading`)."""

from __future__ import annotations

import pytest

from tests.vllm.asking import APIS, every_api, fresh_ids, handed_tokens, post
from tests.vllm.counters import COMPUTED_TOKENS, P2P_READ_BYTES, Risen
from tests.vllm.engines import KV_BYTES_PER_TOKEN
from tests.vllm.figures import Figures
from tests.vllm.pods import Pods
from tests.vllm.scenes import PREFILLER, PREFIX_TOKENS, PROMPT_TOKENS, SOURCE, Lines, alone, computed_on

COMPLETIONS = APIS["completions"]


@pytest.mark.parametrize(("name", "stream"), list(every_api()))
def test_the_decoder_fetches_what_the_prefiller_computed(
    name: str, stream: bool, tiers: Pods, figures: Figures
) -> None:
    p, d, other = tiers["a"], tiers["b"], tiers["c"]
    api = APIS[name]
    body = api.body(PROMPT_TOKENS, stream=stream)
    at_p, at_d, lines = Risen(p.engine_url), Risen(d.engine_url), Lines(d.log_name)

    answer = post(d.url, api.path, body, {PREFILLER: p.netloc})

    usage = api.usage_of(answer)
    expected = handed_tokens(usage.prompt_tokens)
    moved = at_d.settled(P2P_READ_BYTES, expected * KV_BYTES_PER_TOKEN)
    figures.note(status=answer.status, usage=usage, p=at_p.all(), d=at_d.all())
    assert answer.status == 200
    assert answer.streamed == stream
    assert [leg["role"] for leg in lines.last()["legs"]] == ["prefill", "decode"]
    assert api.text_of(answer) == alone(other, api, body) != ""
    assert moved == expected * KV_BYTES_PER_TOKEN
    assert at_p.by(COMPUTED_TOKENS) == usage.prompt_tokens
    assert at_d.by(COMPUTED_TOKENS) == usage.prompt_tokens - expected
    # Anthropic's usage is the decoder's own: the contract names only OpenAI's field.
    assert usage.cached_tokens == (expected if name == "messages" else 0)


@pytest.mark.parametrize("stream", [False, True])
def test_the_prefiller_pulls_a_prefix_from_a_third_pod(stream: bool, tiers: Pods, figures: Figures) -> None:
    p, d, source = tiers["a"], tiers["b"], tiers["c"]
    prompt = fresh_ids(PROMPT_TOKENS)
    body = COMPLETIONS.body(0, stream=stream, prompt=prompt)
    computed_on(source, COMPLETIONS, COMPLETIONS.body(0, prompt=prompt[: PREFIX_TOKENS + 1]))
    at_p, at_d = Risen(p.engine_url), Risen(d.engine_url)

    answer = post(d.url, COMPLETIONS.path, body, {PREFILLER: p.netloc, SOURCE: source.netloc})

    usage = COMPLETIONS.usage_of(answer)
    pulled = at_p.settled(P2P_READ_BYTES, PREFIX_TOKENS * KV_BYTES_PER_TOKEN)
    fetched = at_d.settled(P2P_READ_BYTES, 160 * KV_BYTES_PER_TOKEN)
    figures.note(status=answer.status, usage=usage, p=at_p.all(), d=at_d.all())
    assert answer.status == 200
    assert pulled == PREFIX_TOKENS * KV_BYTES_PER_TOKEN
    assert at_p.by(COMPUTED_TOKENS) == PROMPT_TOKENS - PREFIX_TOKENS
    assert fetched == 160 * KV_BYTES_PER_TOKEN
    assert at_d.by(COMPUTED_TOKENS) == 1
    assert usage.cached_tokens == PREFIX_TOKENS
    assert COMPLETIONS.text_of(answer) == alone(source, COMPLETIONS, body)
