"""Peers by URL, and what is said of single ones."""

from __future__ import annotations

import pytest

from sidecar.doctor.peers import BadFlag, named, overridden, place, placed
from sidecar.endpoint import Endpoint
from sidecar.remote.place import MalformedPlace, Place


def at(*urls: str) -> tuple[Place, ...]:
    """As --peers names them."""
    return placed([place(url) for url in urls], "--peers")


def test_peers_have_letters_and_their_ports_at_their_own_hosts() -> None:
    first, second = named(at("http://10.0.0.1:8000/", "https://[fd00::1]:8000"), 7777, 9090)
    assert (first.name, first.place.url, first.p2p) == (
        "A",
        "http://10.0.0.1:8000",
        Endpoint("10.0.0.1", 7777),
    )
    assert (second.name, second.p2p) == ("B", Endpoint("fd00::1", 7777))
    assert first.operators is not None
    assert first.operators.url == "http://10.0.0.1:9090"


def test_more_than_26_peers_have_two_letters() -> None:
    many = named(at(*(f"http://h:{port}" for port in range(1, 29))), 7777, 0)
    assert [peer.name for peer in many[25:]] == ["Z", "AA", "AB"]
    assert many[0].operators is None


def test_one_peers_ports_are_named_by_its_letter_or_its_url() -> None:
    peers = named(at("http://10.0.0.1:8000", "http://[fd00::1]:8000", "http://c"), 7777, 0)
    p2p = ["A=10.9.9.9:7000", "http://[fd00::1]:8000=7001", "http://c:80/=7002"]
    first, second, third = overridden(peers, p2p, ["A=9090", "B=https://10.9.9.9:9443", "http://c:80=9091"])
    assert [peer.p2p for peer in (first, second, third)] == [
        Endpoint("10.9.9.9", 7000),
        Endpoint("fd00::1", 7001),
        Endpoint("c", 7002),
    ]
    assert [peer.operators.url for peer in (first, second, third) if peer.operators] == [
        "http://10.0.0.1:9090",
        "https://10.9.9.9:9443",
        "http://c:9091",
    ]


def test_ranks_of_one_host_have_their_p2p_ports_counted_up_as_their_own() -> None:
    urls = ["http://a:8001", "http://a:8000", "http://b:8000", "http://a:9000"]
    ranks = named(at(*urls), 7777, 0)
    assert [peer.p2p.port for peer in ranks] == [7778, 7777, 7777, 7777]


@pytest.mark.parametrize("url", ["h:1", "h:1/", "h:1/path", "[::1]:1", "http://h", "https://h:1"])
def test_a_peer_is_a_url_or_host_and_port(url: str) -> None:
    assert place(url) == Place.parse(url)


@pytest.mark.parametrize("url", ["x", "x/y:1z", "[::1", "http://[::1", "http://[", "x:", ""])
def test_a_bare_word_is_none(url: str) -> None:
    with pytest.raises(MalformedPlace):
        place(url)


def test_of_one_peer_one_thing_is_said_once() -> None:
    peers = named(at("http://a:1", "http://b:1"), 7777, 0)
    with pytest.raises(BadFlag, match="--metrics: B is given twice"):
        overridden(peers, [], ["B=1", "A=2", "http://b:1=3"])
