"""Runs the scenarios and writes their span trees as text; `python -m tests.observers.trees` keeps them anew.

Rule: what differs from run to run (ids, ports, durations, random numbers) is named in angle brackets, after
it has been found to be what it should be; all else is told as it is.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cmp_to_key
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sidecar.endpoint import Endpoint
from sidecar.observers.spans import Setting
from sidecar.observers.tracing import Tracing
from tests.engines import ScriptedEngine, complete, scripted
from tests.observers.scenarios import Scenario, scenarios
from tests.serving import Served, post, serving

KEPT = Path(__file__).with_name("trees")
REWRITE = "python -m tests.observers.trees"

# Where the traced sidecar says that it is reached.
OWN = Endpoint("10.0.0.1", 8000)
# How long the last span may take, in seconds: pulls are settled after two looks at an engine's counters.
WITHIN_S = 10.0

_UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
# Spans that ran at once, in the order in which they are told.
_ORDER = ("encode", "lookup", "prefill", "decode", "HTTP", "pull")


@dataclass(frozen=True, slots=True)
class Played:
    """What a scenario led to: its spans, and what its engines were sent."""

    spans: Sequence[ReadableSpan]
    engines: Mapping[str, ScriptedEngine]

    @property
    def tree(self) -> str:
        """The spans as an indented tree."""
        ports = {engine.port: name for name, engine in self.engines.items()}
        return "".join(f"{line}\n" for line in _lines(self.spans, ports))


async def played(scenario: Scenario, *headers: tuple[str, str]) -> Played:
    """Run a scenario to its last span. headers: what the client sends besides."""
    exported = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(scripted(script))
            for name, script in {"decoder": complete, **scenario.engines}.items()
        }
        if scenario.unreachable:
            engines["decoder"].port = _refusing_port()
        setting = Setting(
            _flag(scenario, "kv", "nixlv2"),
            ec_connector=_flag(scenario, "ec"),
            own=OWN,
            guarded="--source-guard=off" not in scenario.flags,
        )
        tracing = Tracing(provider, setting)
        flags = [*scenario.flags, *_bootstrap(engines)]
        sidecar = await stack.enter_async_context(
            serving(engines["decoder"].port, *flags, watchers=[tracing])
        )
        await asyncio.sleep(0.1 if "--pull-verification=on" in flags else 0)  # the first look at the counters
        await _ask(sidecar, scenario, engines, headers)
        async with asyncio.timeout(WITHIN_S):
            while len(exported.get_finished_spans()) < scenario.spans:
                await asyncio.sleep(0.005)
    return Played(exported.get_finished_spans(), engines)


def _flag(scenario: Scenario, kind: str, default: str | None = None) -> Any:
    name = f"--{kind}-connector="
    return next((flag.removeprefix(name) for flag in scenario.flags if flag.startswith(name)), default)


def _bootstrap(engines: Mapping[str, ScriptedEngine]) -> list[str]:
    return [f"--mooncake-bootstrap-port={engines['bootstrap'].port}"] if "bootstrap" in engines else []


def _refusing_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _ask(
    sidecar: Served,
    scenario: Scenario,
    engines: Mapping[str, ScriptedEngine],
    headers: Sequence[tuple[str, str]],
) -> None:
    routing = [
        (name, ",".join(engines[one].netloc if one in engines else one for one in named))
        for name, named in scenario.headers.items()
    ]
    request = post(scenario.path, scenario.body, [*routing, *headers])
    if scenario.method != "POST":
        request = request.replace(b"POST", scenario.method.encode(), 1)
    if scenario.leaves is None:
        await sidecar.ask(request)
        return
    async with sidecar.connected() as (_, writer):
        writer.write(request)
        await engines[scenario.leaves].came()


def _lines(spans: Sequence[ReadableSpan], ports: Mapping[int, str]) -> list[str]:
    """All trees of these spans; a span whose parent was not exported is a root."""
    ids = {span.context.span_id for span in spans if span.context}
    roots = [span for span in spans if span.parent is None or span.parent.span_id not in ids]
    return [line for root in _sorted(roots) for line in _node(root, spans, ports)]


def _node(span: ReadableSpan, spans: Sequence[ReadableSpan], ports: Mapping[int, str]) -> list[str]:
    assert span.context is not None
    assert span.status is not None
    status = span.status.status_code.name
    words = f'{status} "{span.status.description}"' if span.status.description else status
    own = [f"{span.name} [{span.kind.name}] {words}", *_links(span)]
    own += [f"  {key} = {_told(key, value, ports)}" for key, value in sorted((span.attributes or {}).items())]
    children = [one for one in spans if one.parent and one.parent.span_id == span.context.span_id]
    inside = [line for child in _sorted(children) for line in _node(child, spans, ports)]
    return [*own, *(f"    {line}" for line in inside)]


def _links(span: ReadableSpan) -> list[str]:
    assert not span.events
    return [f"  link {link.attributes}" for link in span.links]


def _sorted(spans: Sequence[ReadableSpan]) -> list[ReadableSpan]:
    return sorted(spans, key=cmp_to_key(_before))


def _before(one: ReadableSpan, other: ReadableSpan) -> int:
    """By start, and by role where they ran at once: which of those came first is luck."""
    starts = (one.start_time or 0), (other.start_time or 0)
    together = starts[0] < (other.end_time or 0) and starts[1] < (one.end_time or 0)
    ranks = _ORDER.index(one.name.split()[0]), _ORDER.index(other.name.split()[0])
    left, right = (
        ((ranks[0], starts[0]), (ranks[1], starts[1])) if together else ((0, starts[0]), (0, starts[1]))
    )
    return (left > right) - (left < right)


def _told(key: str, value: Any, ports: Mapping[int, str]) -> str:
    """A value as JSON spells it, or what it is where it differs from run to run."""
    if key.endswith("_ms") and not key.endswith("_estimate_ms"):  # that is computed from what scripts tell
        assert isinstance(value, float), key
        assert 0 <= value < WITHIN_S * 1000, key
        return "<ms>"
    if key.endswith("bootstrap_room"):
        assert 0 <= value < 1 << 63
        return "<room>"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"<port of {ports[value]}>" if key == "server.port" and value in ports else str(value)
    text = _UUID4.sub("<id>", str(value))
    for port, name in ports.items():
        text = text.replace(f":{port}", f":<port of {name}>")
    return f'"{text}"'


async def _rewrite() -> None:
    KEPT.mkdir(exist_ok=True)
    for name, scenario in scenarios().items():
        (KEPT / f"{name}.txt").write_text((await played(scenario)).tree)


if __name__ == "__main__":
    asyncio.run(_rewrite())
