"""Takes the ports of all ranks and of the metrics, before any process serves.

Rule: acts once, at start; a port gets no connections before its process is ready. A port that one process
serves is a socket that it inherits, so that whoever takes its place finds the connections that wait there. A
port that several serve is only held, and each of them listens for itself: the kernel then spreads connections
evenly. On one socket for all, whoever wakes first takes all that wait: of bursts of 128 connections two
workers got 0 and 128, 20 and 108, 59 and 69; with SO_REUSEPORT never less than 53.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from sidecar.server.run import begin, begin_beside, hold
from sidecar.settings import Settings


class PortTaken(Exception):
    """A port cannot be had; the message is one line that begins with the flag."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The sockets that hold the ports: one per rank, and that of the metrics where there is one.

    host: they are on. shared: each rank's is for several processes.
    """

    host: str
    ranks: tuple[socket.socket, ...]
    metrics: socket.socket | None
    shared: bool

    def listener(self, rank: int) -> socket.socket:
        """The listening socket for one process of this rank; what belongs to others is closed in it.

        Raises PortTaken when somebody took it since `take_ports`.
        """
        held = self.ranks[rank]
        port = held.getsockname()[1]
        try:
            listener = begin_beside(held) if self.shared else begin(held)
        except OSError as error:
            raise _taken("--port", self.host, port, error) from None
        for other in self.ranks:
            if other is not listener:
                other.close()
        return listener

    def close(self) -> None:
        """Close them all in this process."""
        for held in (*self.ranks, self.metrics):
            if held:
                held.close()


def take_ports(settings: Settings) -> Ports:
    """Hold every port that the settings name. Raises PortTaken."""
    host, shared = settings.host, settings.workers > 1
    numbers = range(settings.port, settings.port + settings.data_parallel_size)
    ranks = tuple(_held("--port", host, number, shared=shared) for number in numbers)
    port = settings.metrics_port
    metrics = begin(_held("--metrics-port", host, port)) if port else None
    return Ports(host, ranks, metrics, shared)


def _held(flag: str, host: str, port: int, *, shared: bool = False) -> socket.socket:
    try:
        return hold(host, port, shared=shared)
    except OSError as error:
        raise _taken(flag, host, port, error) from None


def _taken(flag: str, host: str, port: int, error: OSError) -> PortTaken:
    flag = "--host" if isinstance(error, socket.gaierror) else flag
    return PortTaken(f"{flag}: cannot listen on {host or '*'}:{port}: {error.strerror}")
