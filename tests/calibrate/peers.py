"""Scripted peers, engines as far as nothing else is said: what each path answers can be another's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from sidecar.remote import Place, Remote, Trust, connected
from tests.engines import Answer, Got, ScriptedEngine, scripted

Said = tuple[int, str, bytes]
"""Status, content type, content."""

HTML: Said = (200, "text/html", b"<html>")
MODELS: Said = (200, "application/json", b'{"data":[{"id":"tiny","max_model_len":32768}]}')
METRICS = b'vllm:kv_offload_tiering_read_bytes_total{tier="1:p2p"} %b\n'


def completion(prompt_tokens: int) -> Said:
    """A stream of one token."""
    events = [
        {"choices": [{"text": "x"}]},
        {"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 1}},
    ]
    content = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)
    return 200, "text/event-stream", content


def counting(**counters: float) -> Said:
    """Counters of a consumer and a source, by their short names."""
    series = {
        "pulled": 'vllm:kv_offload_tiering_read_bytes_total{tier="1:p2p"}',
        "computed": 'vllm:prompt_tokens_by_source_total{source="local_compute"}',
        "stored": "vllm:kv_offload_store_bytes_total",
    }
    lines = [f"{series[name]} {value}\n" for name, value in counters.items()]
    return 200, "text/plain", "".join(lines).encode()


@asynccontextmanager
async def peer(says: Mapping[str, Said | Callable[[], Said]]) -> AsyncIterator[ScriptedEngine]:
    """A peer that says so at these paths. A callable is asked each time."""
    default: dict[str, Said] = {"/v1/models": MODELS, "/metrics": counting(pulled=0, computed=0, stored=0)}

    async def script(got: Got, answer: Answer) -> None:
        said = {**default, **says}.get(got.target, (200, "application/json", b"{}"))
        status, kind, content = said() if callable(said) else said
        await answer.head(status, [("content-type", kind), ("location", "http://elsewhere/")])
        await answer.chunk(content)
        await answer.end()

    async with scripted(script) as running:
        yield running


@asynccontextmanager
async def asked(running: ScriptedEngine) -> AsyncIterator[Remote]:
    """A client of it."""
    async with connected(Place.parse(running.netloc), Trust(), timeout_s=5.0) as remote:
        yield remote
