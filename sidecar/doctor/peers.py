"""Names the peers of a diagnosis, and where the P2P tier and the sidecar's metrics port of each are.

Rule: pure; refusals are ValueErrors whose message begins with the flag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from sidecar.doctor.reading import MOST_RANKS
from sidecar.doctor.told import Peer
from sidecar.endpoint import Endpoint, MalformedEndpoint
from sidecar.remote.place import MalformedPlace, Place

# More than this nobody reads; a larger pool is looked at in parts.
MOST_PEERS = 64


def placed(urls: Sequence[str], flag: str) -> tuple[Place, ...]:
    """Each place once, in its order. Raises ValueError."""
    places: dict[Place, None] = {}
    for url in urls:
        try:
            places[Place.parse(url)] = None
        except MalformedPlace as error:
            raise ValueError(f"{flag}: {error}") from None
    if not places:
        raise ValueError(f"{flag}: no peer is named")
    if len(places) > MOST_PEERS:
        raise ValueError(f"{flag}: {len(places)} peers, at most {MOST_PEERS}")
    return tuple(places)


def named(places: Sequence[Place], p2p_port: int, metrics_port: int) -> tuple[Peer, ...]:
    """A, B, …, each with its P2P tier at its own host. metrics_port: 0 for none.

    Peers of one host are its data-parallel ranks, whose ports are counted up alike (contract section 4).
    """
    base: dict[str, int] = {}
    for place in places:
        host, port = place.endpoint
        base[host] = min(port, base.get(host, port))
    return tuple(
        Peer(
            _letters(at),
            place,
            place.endpoint.with_port(p2p_port + rank),
            Place("http", place.endpoint.with_port(metrics_port)) if metrics_port else None,
            rank,
        )
        for at, (place, rank) in enumerate((place, _rank(place.endpoint, base)) for place in places)
    )


def _rank(endpoint: Endpoint, base: Mapping[str, int]) -> int:
    above = endpoint.port - base[endpoint.host]
    return above if above < MOST_RANKS else 0


def _letters(at: int) -> str:
    """A to Z, then AA, AB, …."""
    first, last = divmod(at, 26)
    return (chr(64 + first) if first else "") + chr(65 + last)


def overridden(peers: Sequence[Peer], p2p: Sequence[str], metrics: Sequence[str]) -> tuple[Peer, ...]:
    """With what was said of single peers: `PEER=HOST:PORT` or `PEER=PORT`, and `PEER=URL` or `PEER=PORT`.

    PEER is a name or a URL. Raises ValueError.
    """
    by_name = {peer.name: peer for peer in peers}
    for text in p2p:
        name, value = _assignment("--p2p", text, by_name)
        by_name[name] = replace(by_name[name], p2p=_endpoint(value, by_name[name]))
    for text in metrics:
        name, value = _assignment("--metrics", text, by_name)
        by_name[name] = replace(by_name[name], operators=_operators(value, by_name[name]))
    return tuple(by_name.values())


def _assignment(flag: str, text: str, by_name: Mapping[str, Peer]) -> tuple[str, str]:
    who, equals, value = text.rpartition("=") if text.count("=") == 1 else text.partition("=")
    urls = {peer.place.url: name for name, peer in by_name.items()}
    name = urls.get(who.rstrip("/"), who)
    if not equals or not value or name not in by_name:
        raise ValueError(f"{flag}: {text!r} is not PEER=…, with a peer's name (A, B, …) or its URL")
    return name, value


def _endpoint(value: str, peer: Peer) -> Endpoint:
    try:
        return Endpoint.parse(value if ":" in value else f"{_host(peer)}:{value}")
    except MalformedEndpoint as error:
        raise ValueError(f"--p2p: {value!r} is neither HOST:PORT nor a port: {error}") from None


def _operators(value: str, peer: Peer) -> Place:
    try:
        return Place.parse(f"http://{_host(peer)}:{value}" if value.isdecimal() else value)
    except MalformedPlace as error:
        raise ValueError(f"--metrics: {error}") from None


def _host(peer: Peer) -> str:
    """As URLs spell it."""
    return urlsplit(peer.place.url).netloc.rpartition(":")[0]
