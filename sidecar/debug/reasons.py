"""Says in sentences why a route is what it is: what was named, what is used of it, and why not the rest.

Rule: pure; a row for every reason of `routing.NoPull` and `alone.Alone`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sidecar.alone import Alone
from sidecar.endpoint import Endpoint
from sidecar.routing import NoPull, Route

NO_PULL = {
    NoPull.MALFORMED: "its header is not host:port",
    NoPull.DENIED: "SSRF protection does not allow it (--inference-pool, --allowed-endpoints)",
    NoPull.NO_P2P: "the connector's engines have no P2P tier (with nixlv2: --enable-p2p-pull)",
    NoPull.SELF: "it is the engine that computes the prompt",
    NoPull.UNREACHABLE: "its P2P port accepts no connection (source guard)",
    NoPull.SILENT: "its last pulls moved nothing, so only one in a while is tried (--silent-zero-retry)",
    NoPull.SUSPENDED: "a pull of the computing engine hung, so only one in a while is tried (pull rescue)",
    NoPull.ENCODERS: "the request goes to encoders, and has no pull beside them",
    NoPull.SEVERAL_PROMPTS: "the request has several prompts, which would share one pull",
    NoPull.BEAM_SEARCH: "beams carry no params, so nothing would move",
    NoPull.PROMPT_LOGPROBS: "log probabilities of the prompt need its whole computation",
}
ALONE = {
    Alone.BEAM_SEARCH: "beams carry no params, so a prefiller's blocks would be lost",
    Alone.SEVERAL_PROMPTS: "several prompts would all get the params of the first",
    Alone.PROMPT_LOGPROBS: "log probabilities of the prompt need its whole computation by the decoder",
}


@dataclass(frozen=True, slots=True)
class SourceState:
    """What is known of a source now. guard: off, unknown, accepts or refuses. resting: nothing came of its
    last pulls, and it is not yet the time to try one.
    """

    guard: str
    resting: bool = False


def reasons(route: Route, alone: str | None, source: SourceState | None) -> Iterator[str]:
    """One sentence each: of the prefiller, the source and the encoders, where they were named."""
    if route.data_parallel:
        yield f"decoder {route.decoder.netloc}: the rank that x-data-parallel-host-port names"
    yield from _of_prefiller(route, alone)
    yield from _of_source(route, alone, source)
    if route.encoder_candidates:
        yield f"encoders: {len(route.encoders)} of the {route.encoder_candidates} that are named can be used"
    if not (route.prefiller or route.no_pull or route.source or route.encoder_candidates):
        yield "no routing header: the local engine answers alone"


def _of_prefiller(route: Route, alone: str | None) -> Iterator[str]:
    if route.prefiller is None:
        return
    named = route.prefiller.endpoint.netloc
    many = f", one of {route.prefill_candidates} named" if route.prefill_candidates > 1 else ""
    if alone:
        yield f"prefiller {named}{many}: not asked ({alone}): {ALONE[Alone(alone)]}"
    else:
        yield f"prefiller {named}{many}: computes the prompt, and the decoder gets its blocks"


def _of_source(route: Route, alone: str | None, state: SourceState | None) -> Iterator[str]:
    named = _netloc(route.named_source)
    if route.no_pull:
        yield f"source {named}: no pull ({route.no_pull}): {NO_PULL[route.no_pull]}"
        return
    if route.source is None:
        return
    computes = "the prefiller" if route.prefiller and not alone else "the decoder"
    guarded = _GUARD[state.guard] if state else _GUARD["unknown"]
    yield f"source {named}: {computes} pulls from its P2P port {route.source.p2p_port} ({guarded})"


def _netloc(endpoint: Endpoint | None) -> str:
    return endpoint.netloc if endpoint else "(unreadable)"


_GUARD = {
    "off": "source guard off",
    "accepts": "source guard: accepted a connection",
    "unknown": "source guard: not probed yet; a request does that first, and goes without a pull if it fails",
    "refuses": "source guard: accepted no connection",
}
