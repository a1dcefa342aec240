"""Where legs may go: hosts and ports, networks, and nothing that is only spelled like them."""

from __future__ import annotations

import pytest

from sidecar.allowlist import Allowlist, Block, entry
from sidecar.endpoint import Endpoint


def listed(*texts: str) -> Allowlist:
    return Allowlist.of(map(entry, texts))


@pytest.mark.parametrize(
    ("texts", "allowed", "denied"),
    [
        (["10.0.0.1:8000"], ["10.0.0.1:8000", "http://10.0.0.1:8000"], ["10.0.0.1:8001", "10.0.0.2:8000"]),
        (["Engine.ns.svc:80"], ["engine.ns.svc.:80"], ["ngine.ns.svc:80", "engine.ns.svc:81"]),
        (["10.0.0.0/8"], ["10.255.1.2:1", "10.0.0.0:65535", "[::ffff:10.1.1.1]:80"], ["11.0.0.1:8000"]),
        (["10.0.0.0/8:8000"], ["10.1.2.3:8000"], ["10.1.2.3:8001"]),
        (["fd00::/8"], ["[fd00::1]:9"], ["[fe80::1]:9", "10.0.0.1:9"]),
        (["[fd00::/8]:8000", "[fc00::/8]"], ["[fd00:0::1]:8000", "[fc00::1]:9"], ["[fd00::1]:9"]),
        (["10.0.0.1/32"], ["10.0.0.1:5"], ["10.0.0.2:5"]),
        (["127.0.0.0/8"], ["127.0.0.1:1"], ["127.1:1", "2130706433:1", "0x7f.0.0.1:1"]),
        (["0.0.0.0/0"], ["1.2.3.4:5"], ["localhost:5", "engine:5", "[::1]:5"]),
        ([], [], ["10.0.0.1:8000", "localhost:8000"]),
    ],
)
def test_what_is_listed_is_allowed_and_nothing_else(
    texts: list[str], allowed: list[str], denied: list[str]
) -> None:
    allowlist = listed(*texts)
    assert [text for text in allowed if not allowlist.allows(Endpoint.parse(text))] == []
    assert [text for text in denied if allowlist.allows(Endpoint.parse(text))] == []


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("10.0.0.1", True),
        ("fd00:0::1", True),
        ("192.168.3.4", True),
        ("PEER", True),
        ("10.0.0.2", False),
        ("127.1", False),
        ("", False),
        ("[fd00::1]", False),
        ("10.0.0.1:8000", False),
        ("evil@10.0.0.1", False),
    ],
)
def test_a_host_is_allowed_when_some_port_of_it_is(host: str, allowed: bool) -> None:
    allowlist = listed("10.0.0.1:8000", "[fd00::1]:8000", "peer:1", "192.168.0.0/16:8000")
    assert allowlist.allows_host(host) is allowed


def test_endpoints_join_a_list_and_leave_it_as_it_was() -> None:
    static = listed("10.0.0.0/8", "peer:1")
    joined = static.joined([Endpoint("a", 1)])
    assert joined == Allowlist.of([entry("a:1"), entry("peer:1"), entry("10.0.0.0/8")])
    assert static == listed("10.0.0.0/8", "peer:1")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("10.0.0.1", "'10.0.0.1' is neither host:port nor a network: no port from 1 to 65535 after the host"),
        ("a:0", "'a:0' is neither host:port nor a network: no port from 1 to 65535 after the host"),
        ("10.0.0.1/8", "'10.0.0.1/8' has bits of a host, write 10.0.0.0/8"),
        (
            "10.0.0.0/33",
            "'10.0.0.0/33' is neither host:port nor a network",
        ),
        ("10.0.0.0/8:", "'10.0.0.0/8:' has no port from 1 to 65535 behind its network"),
        ("10.0.0.0/8:70000", "'10.0.0.0/8:70000' has no port from 1 to 65535 behind its network"),
        ("[fd00::/8]8000", "'[fd00::/8]8000' has no port from 1 to 65535 behind its network"),
        ("[fd00::/8", "'[fd00::/8' has no port from 1 to 65535 behind its network"),
        ("::ffff:10.0.0.0/104", "'::ffff:10.0.0.0/104' is of IPv4 addresses: write them so"),
        ("engine/8", "'engine/8' is neither host:port nor a network"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        entry(text)
    assert str(refused.value).startswith(reason)


def test_a_network_keeps_its_port() -> None:
    block = entry("10.0.0.0/8:8000")
    assert isinstance(block, Block)
    assert (str(block.network), block.port) == ("10.0.0.0/8", 8000)
