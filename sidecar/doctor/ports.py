"""Tries P2P ports from here, before any engine is told of one.

Rule: acts; bounded. A connection that is closed at once does an engine no harm (400 in a row, seen on vLLM
0.32), and a dead port named in a pull makes all its later pulls hang.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from time import monotonic

from sidecar.doctor.addresses import is_loopback
from sidecar.doctor.told import Peer, Port
from sidecar.endpoint import Endpoint
from sidecar.remote.telling import why

# A port in the same data centre accepts in milliseconds; one that drops packets never does.
_WITHIN_S = 2.0
_LAST_PORT = 65535


async def tried(peer: Peer, ranks: int) -> tuple[Port, ...]:
    """The P2P ports of its ranks, counted up from the base port (contract section 4)."""
    ends = [
        peer.p2p.with_port(peer.p2p.port + rank)
        for rank in range(ranks)
        if peer.p2p.port + rank <= _LAST_PORT
    ]
    async with asyncio.TaskGroup() as group:
        trying = [group.create_task(port(end)) for end in ends]
    return tuple(task.result() for task in trying)


async def port(endpoint: Endpoint) -> Port:
    """Whether it accepts now."""
    took_ms, why = await _connect(endpoint)
    if took_ms is not None or is_loopback(endpoint.host) or not _is_ours(endpoint.host):
        return Port(endpoint, took_ms, why)
    beside_ms, _ = await _connect(Endpoint("127.0.0.1", endpoint.port))
    return Port(endpoint, None, why, loopback=beside_ms is not None)


async def _connect(endpoint: Endpoint) -> tuple[float | None, str]:
    began_s = monotonic()
    try:
        async with asyncio.timeout(_WITHIN_S):
            _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    except TimeoutError:
        return None, f"no answer within {_WITHIN_S:g} s"
    except UnicodeError:  # RFC 5891: a label of xn-- and no name
        return None, "no name service knows such a host"
    except OSError as error:
        return None, why(error).lower()
    took_ms = (monotonic() - began_s) * 1000
    writer.transport.abort()
    return took_ms, ""


def _is_ours(host: str) -> bool:
    """Whether an address is one of this machine's; a name is not looked up again."""
    try:
        ip_address(host)
    except ValueError:
        return False
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as trial:
            trial.bind((host, 0))
    except OSError:
        return False
    return True
