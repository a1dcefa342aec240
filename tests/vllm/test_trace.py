"""vLLM's own spans and the sidecar's form one trace."""

from __future__ import annotations

import secrets

from tests.vllm.asking import APIS, fresh_ids, post
from tests.vllm.collector import Collector, Span
from tests.vllm.figures import Figures
from tests.vllm.pods import Fleet, Pods
from tests.vllm.scenes import PREFILLER, PREFIX_TOKENS, PROMPT_TOKENS, SOURCE, computed_on

COMPLETIONS = APIS["completions"]


def _children(spans: list[Span], parent: Span) -> list[Span]:
    return [span for span in spans if span.parent == parent.span]


def test_the_engines_spans_hang_under_our_legs(
    tiers: Pods, collector: Collector, fleet: Fleet, figures: Figures
) -> None:
    p, d, source = tiers["a"], tiers["b"], tiers["c"]
    prompt = fresh_ids(PROMPT_TOKENS)
    computed_on(source, COMPLETIONS, COMPLETIONS.body(0, prompt=prompt[: PREFIX_TOKENS + 1]))
    trace, client = secrets.token_hex(16), secrets.token_hex(8)
    headers = {
        # The prefill engine without its sidecar, as prefill pods are deployed; it is on A's own address.
        PREFILLER: p.engine_netloc,
        SOURCE: source.netloc,
        "traceparent": f"00-{trace}-{client}-01",
    }

    answer = post(d.url, COMPLETIONS.path, COMPLETIONS.body(0, prompt=prompt), headers)

    assert answer.status == 200
    # Ours: the server's, one per stage, one per leg. The embedded engine exports none.
    engines = 2 if fleet.kind == "vllm" else 0
    spans = collector.complete(trace, 5 + engines)
    figures.note(spans=[(span.service, span.name, span.parent) for span in spans])
    [server] = [span for span in spans if span.parent == client]
    assert server.service == f"sidecar-{d.name}"
    assert server.attributes["llm_d.pd_proxy.kv_cache_source"] == source.netloc
    prefill, decode = sorted(_children(spans, server), key=lambda span: span.name, reverse=True)
    assert (prefill.name, decode.name) == ("prefill", "decode")
    for stage, engine in ((prefill, p), (decode, d)):
        [leg] = _children(spans, stage)
        assert leg.attributes["server.port"] == engine.spec.port
        inside = _children(spans, leg)
        assert [span.service for span in inside] == [f"engine-{engine.name}"][:engines]
    assert len(spans) == 5 + engines
