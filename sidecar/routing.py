"""Reads what the endpoint picker decided from a request's headers: the `Route`.

Rule: pure; the random choice among prefillers is handed in. Legacy header names are trusted before new ones,
since an old endpoint picker strips a client's legacy header but lets its new-style one through.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from sidecar import headers as names
from sidecar.allowlist import Allowlist
from sidecar.endpoint import Endpoint, MalformedEndpoint
from sidecar.errors import BadRequest, TargetDenied
from sidecar.plan import Peer

RawHeaders = Iterable[tuple[bytes, bytes]]
Routing = dict[bytes, list[bytes]]


class NoPull(StrEnum):
    """Why a source that was named is not pulled from; the value of the span attribute `reason`."""

    MALFORMED = "source_malformed"
    DENIED = "source_not_allowed"
    NO_P2P = "connector_without_p2p"
    SELF = "source_is_self"
    UNREACHABLE = "source_unreachable"
    SILENT = "source_yields_nothing"
    SUSPENDED = "pulls_suspended"
    ENCODERS = "source_with_encoders"
    SEVERAL_PROMPTS = "several_prompts"
    BEAM_SEARCH = "beam_search"
    PROMPT_LOGPROBS = "prompt_logprobs"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the settings say about routing.

    decoder: the local engine of this rank. own: this rank's own address as peers name it, when it is known
    (`POD_IP`). base_port and ranks: the first of this sidecar's ports and how many data-parallel ranks there
    are. rank: the one whose port this is.
    p2p_port: the P2P port of rank 0. pulls: whether the connector can pull at all.
    sample: pick a random prefiller instead of the first. encode: whether there is an `--ec-connector`.
    """

    decoder: Endpoint
    own: Endpoint | None
    base_port: int
    p2p_port: int
    ranks: int = 1
    pulls: bool = False
    sample: bool = False
    rank: int = 0
    encode: bool = False

    def at(self, rank: int) -> Rules:
        """The same rules for another rank."""
        step = rank - self.rank
        decoder = self.decoder.with_port(self.decoder.port + step)
        own = self.own.with_port(self.own.port + step) if self.own else None
        return replace(self, decoder=decoder, own=own, rank=rank)

    def peer(self, endpoint: Endpoint) -> Peer:
        """The endpoint with its P2P port: base + rank, where the HTTP port tells the rank (section 4)."""
        rank = endpoint.port - self.base_port
        return Peer(endpoint, self.p2p_port + (rank if 0 <= rank < self.ranks else 0))


@dataclass(frozen=True, slots=True)
class Route:
    """What the endpoint picker decided for one request.

    prefill_candidates: how many prefillers the header named. encoders: those that may be used, of
    `encoder_candidates` that the header named. named_source: the source as the header said it, used or not.
    no_pull: why it is not used. own: this pod as its peers name it, when that is known. data_parallel:
    whether a header chose the decoder's rank.
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
    data_parallel: bool = False

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
    request would run somewhere the endpoint picker did not choose; the same for the header that names a rank.
    A bad source or encoder is only ignored.
    """
    said = names.routing(headers)
    if rules.sample or sum([len(value) for _, value in said]) > _REMEMBERED_BYTES:
        return _decided(said, rules, choose)
    return _remembered(said, rules)


# An endpoint picker's headers repeat as long as prompts share a prefix: one route per pair of pods, or so.
_REMEMBERED_ROUTES = 1024
# Two host names of 253 characters with their ports; longer texts are somebody's own, and not kept.
_REMEMBERED_BYTES = 600


@functools.lru_cache(_REMEMBERED_ROUTES)
def _remembered(said: names.Headers, rules: Rules) -> Route:
    return _decided(said, rules, _first)


def _first(count: int) -> int:
    """The choice of rules that do not sample."""
    return 0


def _decided(said: names.Headers, rules: Rules, choose: Callable[[int], int]) -> Route:
    """The route of these routing headers, names in lower case."""
    routing: Routing = {}
    for name, value in said:
        routing.setdefault(name, []).append(value)
    rank = _rank(routing, rules)
    if rank is None:
        return _read(routing, rules, choose)
    return replace(_read(routing, rules.at(rank), choose), data_parallel=True)


def unrouted(headers: RawHeaders, rules: Rules) -> Route:
    """Where a request on a path that is not routed goes: to the local engine, of the rank a header names.

    Raises BadRequest where it names none.
    """
    routing: Routing = {}
    for name, value in names.routing(headers) if rules.ranks > 1 else ():
        routing.setdefault(name, []).append(value)
    rank = _rank(routing, rules)
    return Route(rules.decoder if rank is None else rules.at(rank).decoder, data_parallel=rank is not None)


def permitted(route: Route, allowlist: Allowlist | None) -> Route:
    """The route with what SSRF protection allows of it; all of it when that is off (None).

    Raises TargetDenied for the prefiller: the request would run where the endpoint picker did not choose.
    """
    if allowlist is None:
        return route
    if route.prefiller and not allowlist.allows(route.prefiller.endpoint):
        raise TargetDenied(route.prefiller.endpoint)
    if route.source and not allowlist.allows(route.source.endpoint):
        route = route.without_source(NoPull.DENIED)
    return replace(route, encoders=tuple(filter(allowlist.allows, route.encoders)))


def _read(routing: Routing, rules: Rules, choose: Callable[[int], int]) -> Route:
    """The route of one rank; `routing`: values of routing headers, by lower-case name."""
    candidates = _candidates(routing, names.PREFILLER)
    prefiller = _prefiller(candidates, rules, choose) if candidates else None
    encoders = _candidates(routing, names.ENCODER) if rules.encode else []
    sources = _candidates(routing, names.KV_SOURCE, split=False)
    computes = prefiller.endpoint if prefiller else rules.own
    named, no_pull = _source(sources[0], rules, computes) if sources else (None, None)
    return Route(
        rules.decoder,
        prefiller,
        len(candidates),
        rules.peer(named) if named and not no_pull else None,
        named,
        no_pull,
        tuple(_encoders(encoders)),
        len(encoders),
        rules.own,
    )


def _rank(routing: Routing, rules: Rules) -> int | None:
    """The rank that the header names, None without one; only the base port of several ranks looks.

    Where `POD_IP` is not known any host will do: the header picks among local engines, and nothing else.
    """
    value = routing.get(names.DATA_PARALLEL, [b""])[0].decode("latin-1").strip()
    if not value or rules.rank or rules.ranks == 1:
        return None
    header = f"header {names.DATA_PARALLEL.decode()}"
    try:
        named = Endpoint.parse(value)
    except MalformedEndpoint as error:
        raise BadRequest(f"{header}: {error}") from None
    rank = named.port - rules.base_port
    if not 0 <= rank < rules.ranks or (rules.own and named.host != rules.own.host):
        raise BadRequest(f"{header}: names no rank of this sidecar")
    return rank


def _candidates(routing: Routing, spellings: tuple[bytes, bytes], *, split: bool = True) -> list[str]:
    """One line is split on commas; several lines are one candidate each (contract section 1)."""
    for spelling in spellings:
        lines = routing.get(spelling)
        if lines is None:
            continue
        items = lines[0].split(b",") if split and len(lines) == 1 else lines
        found = [item for line in items if (item := line.decode("latin-1").strip())]
        if found or any(map(bytes.strip, lines)):
            return found  # none of "," either: a legacy header that says anything is the one that counts
    return []


def _prefiller(candidates: list[str], rules: Rules, choose: Callable[[int], int]) -> Peer:
    chosen = candidates[choose(len(candidates)) if rules.sample else 0]
    try:
        return rules.peer(Endpoint.parse(chosen))
    except MalformedEndpoint as error:
        raise BadRequest(f"header {names.PREFILLER[0].decode()}: {error}") from None


def _encoders(candidates: list[str]) -> Iterator[Endpoint]:
    """Those that can be read: encoders are dropped one by one (contract section 7)."""
    for text in candidates:
        try:
            endpoint = Endpoint.parse(text)
        except MalformedEndpoint:
            continue
        yield endpoint


def _source(text: str, rules: Rules, computes: Endpoint | None) -> tuple[Endpoint | None, NoPull | None]:
    """The source that is named, and why it is not used. computes: who computes the prompt, if known."""
    try:
        named = Endpoint.parse(text)
    except MalformedEndpoint:
        return None, NoPull.MALFORMED
    if not rules.pulls:
        return named, NoPull.NO_P2P
    return named, NoPull.SELF if named == computes else None
