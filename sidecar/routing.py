"""Reads what the endpoint picker decided from a request's headers: the `Route`.

Rule: pure; the random choice among prefillers is handed in. Legacy header names are trusted before new ones,
since an old endpoint picker strips a client's legacy header but lets its new-style one through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from sidecar import headers as names
from sidecar.endpoint import Endpoint, MalformedEndpoint
from sidecar.errors import BadRequest
from sidecar.plan import Peer

RawHeaders = Iterable[tuple[bytes, bytes]]


class NoPull(StrEnum):
    """Why a source that was named is not pulled from; the value of the span attribute `reason`."""

    MALFORMED = "source_malformed"
    NO_P2P = "connector_without_p2p"
    SELF = "source_is_self"
    UNREACHABLE = "source_unreachable"
    SEVERAL_PROMPTS = "several_prompts"
    BEAM_SEARCH = "beam_search"
    PROMPT_LOGPROBS = "prompt_logprobs"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the settings say about routing.

    decoder: the local engine. own: this pod's own address as peers name it, when it is known (`POD_IP`).
    base_port and ranks: the first of this sidecar's ports and how many data-parallel ranks there are.
    p2p_port: the P2P port of rank 0. pulls: whether the connector can pull at all.
    sample: pick a random prefiller instead of the first.
    """

    decoder: Endpoint
    own: Endpoint | None
    base_port: int
    p2p_port: int
    ranks: int = 1
    pulls: bool = False
    sample: bool = False

    def peer(self, endpoint: Endpoint) -> Peer:
        """The endpoint with its P2P port: base + rank, where the HTTP port tells the rank (section 4)."""
        rank = endpoint.port - self.base_port
        return Peer(endpoint, self.p2p_port + (rank if 0 <= rank < self.ranks else 0))


@dataclass(frozen=True, slots=True)
class Route:
    """What the endpoint picker decided for one request.

    prefill_candidates: how many prefillers the header named. encoders: those that may be used, of
    `encoder_candidates` that the header named. named_source: the source as the header said it, used or not.
    no_pull: why it is not used. own: this pod as its peers name it, when that is known.
    """

    decoder: Endpoint
    prefiller: Peer | None = None
    prefill_candidates: int = 0
    source: Peer | None = None
    named_source: Endpoint | None = None
    no_pull: NoPull | None = None
    encoders: tuple[Endpoint, ...] = ()
    encoder_candidates: int = 0
    own: Endpoint | None = None

    @property
    def local_source(self) -> Peer | None:
        """The source that the local engine can pull from when it computes the prompt itself."""
        return None if self.source is None or self.source.endpoint == self.own else self.source

    def without_source(self, reason: NoPull) -> Route:
        """The same route with no pull, and the reason for it."""
        return replace(self, source=None, no_pull=reason)


def read(headers: RawHeaders, rules: Rules, choose: Callable[[int], int]) -> Route:
    """The route that these request headers ask for.

    `choose(n)` picks one of n prefillers. Raises BadRequest when the prefiller's header cannot be read: the
    request would run somewhere the endpoint picker did not choose. A bad source is only ignored.
    """
    routing = [(name, value) for key, value in headers if (name := key.lower()) in names.ROUTING]
    if not routing:
        return Route(rules.decoder, own=rules.own)
    candidates = _candidates(routing, names.PREFILLER)
    prefiller = _prefiller(candidates, rules, choose) if candidates else None
    sources = _candidates(routing, names.KV_SOURCE, split=False)
    if not sources:
        return Route(rules.decoder, prefiller, len(candidates), own=rules.own)
    named, no_pull = _source(sources[0], rules, prefiller.endpoint if prefiller else rules.own)
    source = rules.peer(named) if named and not no_pull else None
    return Route(rules.decoder, prefiller, len(candidates), source, named, no_pull, own=rules.own)


def _candidates(
    headers: list[tuple[bytes, bytes]], spellings: tuple[bytes, bytes], *, split: bool = True
) -> list[str]:
    """One line is split on commas; several lines are one candidate each (contract section 1)."""
    for spelling in spellings:
        lines = [value for name, value in headers if name == spelling]
        if split and len(lines) == 1:
            lines = lines[0].split(b",")
        found = [item for line in lines if (item := line.decode("latin-1").strip())]
        if found or any(value.strip() for name, value in headers if name == spelling):
            return found  # none of "," either: a legacy header that says anything is the one that counts
    return []


def _prefiller(candidates: list[str], rules: Rules, choose: Callable[[int], int]) -> Peer:
    chosen = candidates[choose(len(candidates)) if rules.sample else 0]
    try:
        return rules.peer(Endpoint.parse(chosen))
    except MalformedEndpoint as error:
        raise BadRequest(f"header {names.PREFILLER[0].decode()}: {error}") from None


def _source(text: str, rules: Rules, computes: Endpoint | None) -> tuple[Endpoint | None, NoPull | None]:
    """The source that is named, and why it is not used. computes: who computes the prompt, if known."""
    try:
        named = Endpoint.parse(text)
    except MalformedEndpoint:
        return None, NoPull.MALFORMED
    if not rules.pulls:
        return named, NoPull.NO_P2P
    return named, NoPull.SELF if named == computes else None
