"""Says where legs may go while SSRF protection is on: the `Allowlist`.

Rule: pure. What is not listed is denied, host and port alike; a host is what it is spelled as: names are not
looked up here, and only addresses in their usual spelling lie in a network.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from sidecar.endpoint import Endpoint, MalformedEndpoint


@dataclass(frozen=True, slots=True)
class Block:
    """The addresses of a network, at one port or (None) at any."""

    network: IPv4Network | IPv6Network
    port: int | None


@dataclass(frozen=True, slots=True)
class Allowlist:
    """What may be contacted. hosts: those of the endpoints."""

    endpoints: frozenset[Endpoint] = frozenset()
    blocks: tuple[Block, ...] = ()
    hosts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, entries: Iterable[Endpoint | Block]) -> Allowlist:
        """The list of these entries."""
        listed = tuple(entries)
        endpoints = frozenset(each for each in listed if isinstance(each, Endpoint))
        blocks = tuple(each for each in listed if isinstance(each, Block))
        return cls(endpoints, blocks, frozenset(each.host for each in endpoints))

    def joined(self, endpoints: Iterable[Endpoint]) -> Allowlist:
        """This list and these endpoints."""
        return Allowlist.of((*self.endpoints, *self.blocks, *endpoints))

    def allows(self, endpoint: Endpoint) -> bool:
        """Whether a leg may go there."""
        if endpoint in self.endpoints:
            return True
        if not self.blocks or (address := _address(endpoint.host)) is None:
            return False
        return any(block.port in (None, endpoint.port) and address in block.network for block in self.blocks)

    def allows_host(self, host: str) -> bool:
        """Whether some port of this host is listed: what engines tell each other names ports of their own.

        host: as clients spell it, IPv6 without brackets.
        """
        try:
            host = Endpoint.parse(f"[{host}]:1" if ":" in host else f"{host}:1").host
        except MalformedEndpoint:
            return False
        if host in self.hosts:
            return True
        address = _address(host)
        return address is not None and any(address in block.network for block in self.blocks)


def entry(text: str) -> Endpoint | Block:
    """Read `host:port`, or a network with a port or without: `10.0.0.0/8:80`, `10.0.0.0/8`, `[fd00::/8]:80`.

    Raises ValueError with the reason.
    """
    if "/" not in text.removeprefix("http://"):
        try:
            return Endpoint.parse(text)
        except MalformedEndpoint as error:
            raise ValueError(f"{text!r} is neither host:port nor a network: {error}") from None
    network, port = _split(text)
    try:
        parsed = ip_network(network, strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is neither host:port nor a network") from None
    if parsed.network_address != ip_address(network.partition("/")[0]):
        raise ValueError(f"{text!r} has bits of a host, write {parsed}")
    if isinstance(parsed, IPv6Network) and parsed.network_address.ipv4_mapped is not None:
        raise ValueError(f"{text!r} is of IPv4 addresses: write them so")  # hosts are compared as IPv4
    return Block(parsed, port)


def _split(text: str) -> tuple[str, int | None]:
    """The network and the port behind it, if there is one. Raises ValueError."""
    if text.startswith("["):
        network, bracket, rest = text[1:].partition("]")
        if bracket and not rest:
            return network, None
        port = rest.removeprefix(":") if rest.startswith(":") else ""
    else:
        prefix, _, length = text.rpartition("/")
        bits, colon, port = length.partition(":")
        network = f"{prefix}/{bits}"
        if not colon:
            return network, None
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise ValueError(f"{text!r} has no port from 1 to 65535 behind its network")
    return network, int(port)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """The address that a normal host is; None for names, and for what only some readers take for an address.

    "127.1" or "0x7f.0.0.1" are such: inet_aton(3) reads them, and so may whoever connects.
    """
    try:
        return ip_address(host)
    except ValueError:
        return None
