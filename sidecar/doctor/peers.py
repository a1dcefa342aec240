"""Names the peers of a diagnosis, and where the P2P tier and the sidecar's metrics port of each are.

Rule: pure; refusals are BadFlags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from sidecar.doctor.reading import MOST_RANKS
from sidecar.doctor.told import Peer
from sidecar.endpoint import Endpoint, MalformedEndpoint
from sidecar.remote.place import MalformedPlace, Place
from sidecar.remote.texts import quoted

# More than this nobody reads; a larger pool is looked at in parts.
MOST_PEERS = 64
_PORT = re.compile(r":[0-9]+(?:/|$)", re.ASCII)


class BadFlag(ValueError):
    """What was asked for cannot be; the message begins with the flag."""


def place(url: str) -> Place:
    """A URL, or `HOST:PORT`, which is http. Raises MalformedPlace, of a bare word too."""
    if "://" not in url and not _PORT.search(url):
        raise MalformedPlace(f"{quoted(url)} is neither a URL nor HOST:PORT")
    return Place.parse(url)


def placed(given: Sequence[Place], flag: str) -> tuple[Place, ...]:
    """Each place once, in its order. Raises BadFlag."""
    places = tuple(dict.fromkeys(given))
    if len(places) < 2:
        raise BadFlag(
            f"{flag}: {len(places)} peer{'' if len(places) == 1 else 's'}, and it takes two to pull"
        )
    if len(places) > MOST_PEERS:
        raise BadFlag(f"{flag}: {len(places)} peers, at most {MOST_PEERS}")
    return places


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

    PEER is a name or a URL. Raises BadFlag.
    """
    by_name = {peer.name: peer for peer in peers}
    for name, value in _assigned("--p2p", p2p, by_name):
        by_name[name] = replace(by_name[name], p2p=_endpoint(value, by_name[name]))
    for name, value in _assigned("--metrics", metrics, by_name):
        by_name[name] = replace(by_name[name], operators=_operators(value, by_name[name]))
    return tuple(by_name.values())


def _assigned(flag: str, texts: Sequence[str], by_name: Mapping[str, Peer]) -> Iterator[tuple[str, str]]:
    """What each of a flag's values says of whom; of one peer only one."""
    seen: set[str] = set()
    for text in texts:
        name, value = _assignment(flag, text, by_name)
        if name in seen:
            raise BadFlag(f"{flag}: {name} is given twice")
        seen.add(name)
        yield name, value


def _assignment(flag: str, text: str, by_name: Mapping[str, Peer]) -> tuple[str, str]:
    who, equals, value = text.rpartition("=") if text.count("=") == 1 else text.partition("=")
    urls = {peer.place.url: name for name, peer in by_name.items()}
    name = urls.get(who.rstrip("/"), who)
    if not equals or not value or name not in by_name:
        raise BadFlag(f"{flag}: {quoted(text)} is not PEER=…, with a peer's name (A, B, …) or its URL")
    return name, value


def _endpoint(value: str, peer: Peer) -> Endpoint:
    try:
        return Endpoint.parse(value if ":" in value else f"{_host(peer)}:{value}")
    except MalformedEndpoint as error:
        raise BadFlag(f"--p2p: {quoted(value)} is neither HOST:PORT nor a port: {error}") from None


def _operators(value: str, peer: Peer) -> Place:
    try:
        return place(f"{_host(peer)}:{value}" if value.isdecimal() else value)
    except MalformedPlace as error:
        raise BadFlag(f"--metrics: {error}") from None


def _host(peer: Peer) -> str:
    """As URLs spell it."""
    return urlsplit(peer.place.url).netloc.rpartition(":")[0]
