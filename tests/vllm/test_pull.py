"""A pod pulls a prefix that another has computed: vLLM's P2P tier, decode only."""

from __future__ import annotations

from time import sleep
from typing import Any

import httpx
import pytest

from tests.vllm.asking import APIS, every_api, post, pulled_tokens
from tests.vllm.counters import (
    COMPUTED_TOKENS,
    P2P_READ_BYTES,
    P2P_WRITTEN_BYTES,
    PEER_TOKENS,
    QUIET_S,
    STORED_BYTES,
    Risen,
)
from tests.vllm.engines import KV_BYTES_PER_TOKEN
from tests.vllm.figures import Figures
from tests.vllm.pods import IPS, Pods
from tests.vllm.processes import eventually, free_port
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


def test_a_source_tells_through_its_sidecar_what_it_gave(tiers: Pods, figures: Figures) -> None:
    a, b = tiers["a"], tiers["b"]
    api = APIS["completions"]
    metrics_port = free_port(*IPS)
    looking = tiers.fleet.extra_sidecar(
        b,
        "looking",
        (
            "--kv-connector=offloading",
            "--debug-endpoints",
            f"--metrics-port={metrics_port}",
            "--pull-verification-source-interval=1s",
        ),
    )

    def last() -> dict[str, Any]:
        url = f"http://{b.spec.ip}:{metrics_port}/debug/pulls"
        pull: dict[str, Any] = httpx.get(url).json()["exchanges"][0]["legs"][0]["pull"]
        return pull

    def asked(tokens_there: int) -> dict[str, Any]:
        """One pull of a prompt of which the source has so much, once the source has spoken."""
        body = api.body(PROMPT_TOKENS, stream=False)
        if tokens_there:
            computed_on(a, api, body)
        risen = Risen(a.url)  # through its sidecar, as ours asks
        answer = post(looking, api.path, body, {SOURCE: a.netloc})
        moved = pulled_tokens(tokens_there) * KV_BYTES_PER_TOKEN if tokens_there else 0
        written = risen.settled(P2P_WRITTEN_BYTES, moved) if moved else risen.by(P2P_WRITTEN_BYTES)
        assert eventually(lambda: last()["source_says"] is not None, 30)
        figures.note(status=answer.status, usage=api.usage_of(answer), pull=last(), written=written)
        assert (written, risen.by(STORED_BYTES)) == (moved, 0)
        return last()

    first, second, none = asked(PROMPT_TOKENS), asked(PROMPT_TOKENS), asked(0)
    assert (first["outcome"], first["source_says"]) == ("moved", "unknown")
    assert (second["outcome"], second["source_says"]) == ("moved", "confirmed")
    assert (none["outcome"], none["source_says"]) == ("nothing", "nothing")
