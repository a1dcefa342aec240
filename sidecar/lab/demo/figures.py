"""Measures one request of the demonstration: what the client waited for, and what the engines' counters say.

Rule: figures come from the client's clock and from the engines' own `/metrics`, before and after.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import httpx

from sidecar.lab.demo.pods import MODEL, Pod

_SERIES = re.compile(r"^(vllm:[a-z0-9_]+)(?:\{([^}]*)\})? ([0-9.e+-]+)$", re.MULTILINE)

Counters = dict[str, float]


@dataclass(frozen=True, slots=True)
class Moved:
    """What one engine did for one request: prompt tokens by where they came from, and bytes from its peer."""

    computed_tokens: int
    cached_tokens: int
    pulled_tokens: int
    pulled_bytes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request: its text, its trace, the time to the first token, the usage it told, each pod's work."""

    text: str
    trace_id: str
    ttft_ms: float
    usage: dict[str, Any]
    moved: dict[str, Moved]


async def ask(
    client: httpx.AsyncClient, pods: tuple[Pod, Pod], to: Pod, prompt: str, headers: dict[str, str]
) -> Outcome:
    """Send a streamed chat request to a pod's sidecar and compare the engines' counters around it."""
    before = {pod.name: await counters(client, pod) for pod in pods}
    trace_id = f"{len(prompt):08x}{int(perf_counter() * 1e9):024x}"
    text, usage, ttft_ms = await _stream(
        client, to, prompt, {**headers, "traceparent": f"00-{trace_id}-{1:016x}-01"}
    )
    after = {pod.name: await counters(client, pod) for pod in pods}
    moved = {name: _moved(before[name], after[name]) for name in after}
    return Outcome(text, trace_id, ttft_ms, usage, moved)


async def counters(client: httpx.AsyncClient, pod: Pod) -> Counters:
    """The engine's series that tell where prompt tokens came from, by name and the label that matters."""
    text = (await client.get(f"http://127.0.0.1:{pod.engine_port}/metrics")).text
    found: Counters = {}
    for name, labels, value in _SERIES.findall(text):
        wanted = re.search(r'(?:source|tier)="([^"]*)"', labels)
        found[f"{name}/{wanted[1]}" if wanted else name] = float(value)
    return found


def _moved(before: Counters, after: Counters) -> Moved:
    def rise(series: str) -> int:
        return int(after.get(series, 0) - before.get(series, 0))

    by_source = "vllm:prompt_tokens_by_source_total/"
    return Moved(
        computed_tokens=rise(by_source + "local_compute"),
        cached_tokens=rise(by_source + "local_cache_hit"),
        pulled_tokens=rise(by_source + "external_kv_transfer"),
        pulled_bytes=rise("vllm:kv_offload_tiering_read_bytes_total/1:p2p"),
    )


async def _stream(
    client: httpx.AsyncClient, to: Pod, prompt: str, headers: dict[str, str]
) -> tuple[str, dict[str, Any], float]:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text, ttft_ms = "", 0.0
    usage: dict[str, Any] = {}
    started = perf_counter()
    url = f"http://{to.netloc}/v1/chat/completions"
    async with client.stream("POST", url, json=body, headers=headers) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            ttft_ms = ttft_ms or (perf_counter() - started) * 1000
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            usage = event.get("usage") or usage
            text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    return text, usage, ttft_ms
