"""Tells the demonstration: four requests, what each cost, what moved, and the trace of the pulls.

Rule: succeeds only if blocks really moved, the control moved none, and every answer had the same text.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import httpx

from sidecar.lab.demo import spans
from sidecar.lab.demo.figures import Moved, Outcome, ask
from sidecar.lab.demo.pods import Pod, StartFailed, running_pods

SOURCE = "x-kv-cache-source-host-port"
PREFILLER = "x-prefiller-host-port"

# About 24,000 tokens: computing them again takes the simulated engine most of a second.
PREFIX = "A pod that has computed a prefix still holds its blocks; another pod can pull them. " * 900
# The sidecar's exporter writes every 50 ms.
_SPANS_TIMEOUT_S = 5.0


def main(argv: Sequence[str]) -> int:
    """Run the demonstration; 0 when everything happened that it is about, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="sidecar lab demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="go on running after the story, until Ctrl-C")
    args = parser.parse_args(argv)
    try:
        return asyncio.run(_demo(keep=args.keep))
    except StartFailed as failed:
        print(f"sidecar lab demo: {failed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


@dataclass(frozen=True, slots=True)
class Told:
    """The four requests of the story."""

    first: Outcome
    control: Outcome
    pull: Outcome
    handoff: Outcome


async def _demo(*, keep: bool) -> int:
    started_s = monotonic()
    print("Starting two pods, each a simulated vLLM engine with a sidecar in front …", flush=True)
    async with httpx.AsyncClient(timeout=30) as client, running_pods(client) as pods:
        a, b = pods
        print(f"  pod A  sidecar http://{a.netloc}  engine http://127.0.0.1:{a.engine_port}")
        print(f"  pod B  sidecar http://{b.netloc}  engine http://127.0.0.1:{b.engine_port}\n", flush=True)
        told = await _tell(client, pods)
        for title, pod, outcome in (("pull", b, told.pull), ("prefill/decode", a, told.handoff)):
            print(f"\nThe trace of the {title} ({outcome.trace_id}):")
            print("\n".join("  " + line for line in await _trace(pod, outcome.trace_id)), flush=True)
        problems = list(_problems(told))
        _sum_up(told, problems)
        if keep and not problems:
            await _kept(pods)
    if not keep:
        print(f"Everything is stopped again ({monotonic() - started_s:.0f} s). Debug page: make demo KEEP=1")
    return 1 if problems else 0


def _sum_up(told: Told, problems: Sequence[str]) -> None:
    print()
    for problem in problems:
        print(f"FAILED: {problem}")
    if not problems:
        faster = told.control.ttft_ms / told.pull.ttft_ms
        mib = told.pull.moved["B"].pulled_bytes / 2**20
        print(f"Blocks moved: {mib:.2f} MiB from A to B; the first token came {faster:.1f} times sooner.")


async def _kept(pods: tuple[Pod, Pod]) -> None:
    """Name the debug pages and wait until the user has seen enough."""
    print("\nThe debug pages, live:")
    for pod in pods:
        print(f"  pod {pod.name}  {pod.page}")
    a, b = pods
    print("\nSend something, and see it there:")
    print(f"  curl -i http://{b.netloc}/v1/completions -H '{SOURCE}: {a.netloc}' -H 'x-sidecar-debug: 1' \\")
    print(
        """       -H 'content-type: application/json' -d '{"model":"tiny","prompt":"Hello","max_tokens":8}'"""
    )
    print("\nCtrl-C ends it.", flush=True)
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    await stopping.wait()


async def _tell(client: httpx.AsyncClient, pods: tuple[Pod, Pod]) -> Told:
    a, b = pods
    print(f"{'request':<47}{'TTFT':>9}  who computed what, and what came from where")
    first = await ask(client, pods, a, PREFIX, {})
    _row("1  to A: a long prompt, for the first time", first)
    control = await ask(client, pods, b, PREFIX, {})
    _row("2  to B: the same, no header (the control)", control)
    await _forget(client, b)
    pull = await ask(client, pods, b, PREFIX, {SOURCE: a.netloc})
    _row("3  to B, which has forgotten it: source is A", pull)
    await _forget(client, b)
    more = PREFIX + "And then the conversation goes on for another turn. " * 40
    handoff = await ask(client, pods, a, more, {PREFILLER: b.netloc, SOURCE: a.netloc})
    _row("4  to A: prefill on B, which pulls from A", handoff)
    return Told(first, control, pull, handoff)


async def _forget(client: httpx.AsyncClient, pod: Pod) -> None:
    """Empty an engine's caches, so that the same prefix can be asked for again."""
    url = f"http://127.0.0.1:{pod.engine_port}/reset_prefix_cache"
    (await client.post(url, params={"reset_external": "true"})).raise_for_status()


def _row(title: str, outcome: Outcome) -> None:
    work = "; ".join(
        f"{name} {text}" for name, moved in outcome.moved.items() if (text := _work(moved, name))
    )
    print(f"{title:<47}{outcome.ttft_ms:6.0f} ms  {work}", flush=True)


def _work(moved: Moved, name: str) -> str:
    peer = {"A": "B", "B": "A"}[name]
    parts = []
    if moved.computed_tokens:
        parts.append(f"computed {moved.computed_tokens:,}")
    if moved.cached_tokens:
        parts.append(f"had {moved.cached_tokens:,}")
    if moved.pulled_bytes:
        parts.append(f"pulled {moved.pulled_tokens:,} from {peer} ({moved.pulled_bytes / 2**20:.2f} MiB)")
    return ", ".join(parts)


async def _trace(pod: Pod, trace_id: str) -> list[str]:
    """The drawing of a trace, once its server span, which ends last, has been exported."""
    deadline_s = monotonic() + _SPANS_TIMEOUT_S
    found = spans.read(pod.spans, trace_id)
    while not any(span["kind"] == "SpanKind.SERVER" for span in found) and monotonic() < deadline_s:
        await asyncio.sleep(0.05)
        found = spans.read(pod.spans, trace_id)
    return spans.tree(found)


def _problems(told: Told) -> list[str]:
    b_pull, b_control, b_prefill = told.pull.moved["B"], told.control.moved["B"], told.handoff.moved["B"]
    checks = {
        "the control moved bytes": b_control.pulled_bytes == 0,
        "the pull moved no bytes": b_pull.pulled_bytes > 0,
        "the pull left most of the prefix to be computed": b_pull.pulled_tokens > 20 * b_pull.computed_tokens,
        "the prefill leg pulled nothing": b_prefill.pulled_bytes > 0,
        "the decoder computed what was prefilled for it": told.handoff.moved["A"].computed_tokens < 200,
        "pulled blocks changed the text": told.first.text == told.control.text == told.pull.text != "",
    }
    return [problem for problem, holds in checks.items() if not holds]
