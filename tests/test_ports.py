"""The listening sockets: taken before anybody serves, inherited or shared."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from sidecar.ports import Ports, PortTaken, take_ports
from sidecar.settings import load
from tests.commands import closed_ports


@contextmanager
def taken(*flags: str) -> Iterator[Ports]:
    """The ports of a sidecar with these flags."""
    ports = take_ports(load(["--model-server-port=1", *flags], {}))
    try:
        yield ports
    finally:
        ports.close()


def accepts(address: str, port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection((address, port), 2.0).close()
    except OSError:
        return False
    return True


def test_a_port_gets_no_connections_before_its_process_asks_for_them() -> None:
    port = closed_ports(1)
    with taken(f"--port={port}") as ports:
        assert not accepts("127.0.0.1", port)
        listener = ports.listener(0)
        assert accepts("127.0.0.1", port)
        assert listener is ports.ranks[0]  # so that the next process finds what waits here
    assert not accepts("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "reached"), [("", ("127.0.0.1", "::1")), ("127.0.0.1", ("127.0.0.1",)), ("::1", ("::1",))]
)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_host_says_over_which_addresses_a_port_is_reached(
    host: str, reached: tuple[str, ...], workers: int
) -> None:
    port = closed_ports(1)
    with (
        taken(f"--port={port}", f"--host={host}", f"--workers={workers}") as ports,
        closing(ports.listener(0)),
    ):
        assert tuple(address for address in ("127.0.0.1", "::1") if accepts(address, port)) == reached


def test_each_rank_listens_on_its_own_port_and_lets_go_of_the_others() -> None:
    port = closed_ports(3)
    with taken(f"--port={port}", "--data-parallel-size=3") as ports:
        ports.listener(1)
        assert [accepts("127.0.0.1", port + rank) for rank in range(3)] == [False, True, False]
        assert [held.fileno() == -1 for held in ports.ranks] == [True, False, True]


def test_the_kernel_deals_the_connections_of_a_shared_port_out() -> None:
    port = closed_ports(1)
    flags = (f"--port={port}", "--workers=2", "--host=127.0.0.1")
    with taken(*flags) as held, closing(held.ranks[0].dup()) as again:
        first = held.listener(0)
        second = Ports("127.0.0.1", (again,), None, shared=True).listener(0)
        with closing(first), closing(second):
            clients = [socket.create_connection(("127.0.0.1", port), 2.0) for _ in range(64)]
            shares = Counter[str]()
            for name, listener in (("first", first), ("second", second)):
                while True:
                    try:
                        listener.accept()[0].close()
                    except BlockingIOError:
                        break
                    shares[name] += 1
            for client in clients:
                client.close()
    assert shares.total() == 64
    assert min(shares["first"], shares["second"]) >= 12


@pytest.mark.parametrize("workers", [1, 2])
def test_a_shared_port_cannot_be_taken_again_by_another_sidecar(workers: int) -> None:
    port = closed_ports(1)
    again = load([f"--port={port}", f"--workers={workers}"], {})
    with (
        taken(f"--port={port}", "--workers=2") as ports,
        closing(ports.listener(0)),
        pytest.raises(PortTaken) as refused,
    ):
        take_ports(again)
    assert str(refused.value) == f"--port: cannot listen on *:{port}: Address already in use"


def test_who_was_quicker_between_taking_and_listening_is_said() -> None:
    port = closed_ports(1)
    with taken(f"--port={port}") as slow, taken(f"--port={port}") as quick:
        quick.listener(0)
        with pytest.raises(PortTaken, match=rf"^--port: cannot listen on \*:{port}: Address already in use$"):
            slow.listener(0)


def test_a_host_that_is_no_address_of_this_machine_is_said() -> None:
    with pytest.raises(
        PortTaken, match=r"^--port: cannot listen on 192\.0\.2\.1:\d+: Cannot assign requested"
    ):
        take_ports(load(["--host=192.0.2.1", "--model-server-port=1"], {}))
