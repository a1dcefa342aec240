"""P2P ports are tried from here, each rank's, and closed at once."""

from __future__ import annotations

import asyncio
import socket

import pytest

from sidecar.doctor import ports
from sidecar.doctor.told import Peer
from sidecar.endpoint import Endpoint
from sidecar.remote.place import Place
from tests.commands import closed_ports


async def listening(host: str, port: int) -> asyncio.Server:
    """Somebody who accepts connections and says nothing."""
    return await asyncio.start_server(lambda _, writer: writer.close(), host, port)


async def test_each_rank_has_a_port_of_its_own_above_the_base_port() -> None:
    base = closed_ports(3)
    async with await listening("127.0.0.1", base), await listening("127.0.0.1", base + 2):
        peer = Peer("A", Place("http", Endpoint("127.0.0.1", 1)), Endpoint("127.0.0.1", base))
        found = await ports.tried(peer, 3)
    assert [(one.endpoint.port - base, one.open, one.why) for one in found] == [
        (0, True, ""),
        (1, False, "connection refused"),
        (2, True, ""),
    ]
    assert not any(one.loopback for one in found)


async def test_a_tier_that_only_loopback_reaches_is_told_where_it_is_this_machines() -> None:
    ours = address()
    port = closed_ports(1)
    async with await listening("127.0.0.1", port):
        found = await ports.port(Endpoint(ours, port))
    assert (found.open, found.loopback) == (False, True)


async def test_of_another_machine_loopback_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_WITHIN_S", 0.2)
    port = closed_ports(1)
    async with await listening("127.0.0.1", port):
        found = await ports.port(Endpoint("192.0.2.1", port))  # RFC 5737: nobody's
    assert (found.open, found.loopback) == (False, False)
    assert found.why


async def test_a_host_that_can_have_no_address_is_shut() -> None:
    found = await ports.port(Endpoint("a" * 64, 1))  # RFC 1035: a label too long by one
    assert (found.open, found.why) == (False, "no name service knows such a host")


async def test_a_rank_beyond_the_last_port_is_not_tried() -> None:
    peer = Peer("A", Place("http", Endpoint("127.0.0.1", 1)), Endpoint("127.0.0.1", 65535))
    assert len(await ports.tried(peer, 4)) == 1


def address() -> str:
    """An address of this machine that is not loopback's; skips where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a route is chosen, nothing is sent
        except OSError:
            pytest.skip("no address but loopback's")
        return str(probe.getsockname()[0])
