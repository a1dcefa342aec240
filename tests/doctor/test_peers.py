"""Peers by URL, and what is said of single ones."""

from __future__ import annotations

from sidecar.doctor.peers import named, overridden, placed
from sidecar.endpoint import Endpoint


def test_peers_have_letters_and_their_ports_at_their_own_hosts() -> None:
    first, second = named(placed(["http://10.0.0.1:8000/", "https://[fd00::1]:8000"], "--peers"), 7777, 9090)
    assert (first.name, first.place.url, first.p2p) == (
        "A",
        "http://10.0.0.1:8000",
        Endpoint("10.0.0.1", 7777),
    )
    assert (second.name, second.p2p) == ("B", Endpoint("fd00::1", 7777))
    assert first.operators is not None
    assert first.operators.url == "http://10.0.0.1:9090"


def test_more_than_26_peers_have_two_letters() -> None:
    many = named(placed([f"http://h:{port}" for port in range(1, 29)], "--peers"), 7777, 0)
    assert [peer.name for peer in many[25:]] == ["Z", "AA", "AB"]
    assert many[0].operators is None


def test_one_peers_ports_are_named_by_its_letter_or_its_url() -> None:
    peers = named(placed(["http://10.0.0.1:8000", "http://[fd00::1]:8000", "http://c"], "--peers"), 7777, 0)
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
    ranks = named(placed(urls, "--peers"), 7777, 0)
    assert [peer.p2p.port for peer in ranks] == [7778, 7777, 7777, 7777]
