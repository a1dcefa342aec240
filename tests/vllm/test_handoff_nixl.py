"""One pod prefills, another decodes, and the blocks go over NIXL (`--kv-connector=nixlv2`)."""

from __future__ import annotations

import pytest

from tests.vllm.asking import APIS, every_api, fresh_ids, post
from tests.vllm.counters import COMPUTED_TOKENS, NIXL_BYTES, P2P_READ_BYTES, Risen
from tests.vllm.engines import BLOCK_TOKENS, KV_BYTES_PER_TOKEN
from tests.vllm.figures import Figures
from tests.vllm.pods import Pods
from tests.vllm.scenes import PREFILLER, PREFIX_TOKENS, PROMPT_TOKENS, SOURCE, Lines, alone, computed_on

COMPLETIONS = APIS["completions"]


def read_bytes(tokens: int) -> int:
    """NIXL reads whole blocks, the last one too when it is not full."""
    return -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS * KV_BYTES_PER_TOKEN


@pytest.mark.parametrize(("name", "stream"), list(every_api()))
def test_the_decoder_reads_what_the_prefiller_computed(
    name: str, stream: bool, nixl: Pods, figures: Figures
) -> None:
    p, d = nixl["p"], nixl["d"]
    api = APIS[name]
    body = api.body(PROMPT_TOKENS, stream=stream)
    at_p, at_d, lines = Risen(p.engine_url), Risen(d.engine_url), Lines(d.log_name)

    answer = post(d.url, api.path, body, {PREFILLER: p.engine_netloc})

    usage = api.usage_of(answer)
    moved = at_d.settled(NIXL_BYTES, read_bytes(usage.prompt_tokens))
    figures.note(status=answer.status, usage=usage, p=at_p.all(), d=at_d.all())
    assert answer.status == 200
    assert answer.streamed == stream
    assert [leg["role"] for leg in lines.last()["legs"]] == ["prefill", "decode"]
    assert at_p.by(COMPUTED_TOKENS) == usage.prompt_tokens
    assert moved == read_bytes(usage.prompt_tokens)
    assert usage.cached_tokens == 0
    assert api.text_of(answer) == alone(p, api, body) != ""


def test_cached_tokens_are_those_of_the_prefiller(nixl: Pods, figures: Figures) -> None:
    p, d = nixl["p"], nixl["d"]
    prompt = fresh_ids(PROMPT_TOKENS)
    assert post(p.engine_url, COMPLETIONS.path, COMPLETIONS.body(0, prompt=prompt[:97])).status == 200
    found: dict[bool, int | None] = {}
    for stream in (False, True):
        body = COMPLETIONS.body(0, stream=stream, prompt=[*prompt[:PREFIX_TOKENS], *fresh_ids(65)])
        answer = post(d.url, COMPLETIONS.path, body, {PREFILLER: p.engine_netloc})
        found[stream] = COMPLETIONS.usage_of(answer).cached_tokens
        assert COMPLETIONS.text_of(answer) == alone(p, COMPLETIONS, body)
    figures.note(cached=found[False], cached_streamed=found[True])
    assert found == {False: PREFIX_TOKENS, True: PREFIX_TOKENS}


@pytest.mark.parametrize("stream", [False, True])
def test_the_prefiller_pulls_over_p2p_and_hands_over_by_nixl(
    stream: bool, both: Pods, figures: Figures
) -> None:
    source, p, d = both["s"], both["p"], both["d"]
    prompt = fresh_ids(PROMPT_TOKENS)
    body = COMPLETIONS.body(0, stream=stream, prompt=prompt)
    computed_on(source, COMPLETIONS, COMPLETIONS.body(0, prompt=prompt[: PREFIX_TOKENS + 1]))
    at_p, at_d = Risen(p.engine_url), Risen(d.engine_url)

    answer = post(d.url, COMPLETIONS.path, body, {PREFILLER: p.netloc, SOURCE: source.netloc})

    usage = COMPLETIONS.usage_of(answer)
    pulled = at_p.settled(P2P_READ_BYTES, PREFIX_TOKENS * KV_BYTES_PER_TOKEN)
    moved = at_d.settled(NIXL_BYTES, read_bytes(PROMPT_TOKENS))
    figures.note(status=answer.status, usage=usage, p=at_p.all(), d=at_d.all())
    assert answer.status == 200
    assert pulled == PREFIX_TOKENS * KV_BYTES_PER_TOKEN
    assert at_p.by(COMPUTED_TOKENS) == PROMPT_TOKENS - PREFIX_TOKENS
    assert moved == read_bytes(PROMPT_TOKENS)
    assert at_d.by(P2P_READ_BYTES) == 0
    assert usage.cached_tokens == PREFIX_TOKENS
    assert COMPLETIONS.text_of(answer) == alone(source, COMPLETIONS, body)


def test_an_engine_with_both_connectors_pulls_over_p2p_when_it_only_decodes(
    both: Pods, figures: Figures
) -> None:
    source, d = both["s"], both["d"]
    body = COMPLETIONS.body(PROMPT_TOKENS)
    expected = computed_on(source, COMPLETIONS, body)
    risen = Risen(d.engine_url)

    answer = post(d.url, COMPLETIONS.path, body, {SOURCE: source.netloc})

    moved = risen.settled(P2P_READ_BYTES, 160 * KV_BYTES_PER_TOKEN)
    usage = COMPLETIONS.usage_of(answer)
    figures.note(status=answer.status, usage=usage, d=risen.all())
    assert moved == 160 * KV_BYTES_PER_TOKEN
    assert (answer.status, usage.cached_tokens, risen.by(NIXL_BYTES)) == (200, 160, 0)
    assert COMPLETIONS.text_of(answer) == COMPLETIONS.text_of(expected)
