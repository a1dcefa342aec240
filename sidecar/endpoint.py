"""Names one TCP endpoint, `host:port`, in the one normal form that comparisons need.

Rule: pure; every host and port that reaches the program from outside comes through `Endpoint.parse`.
"""

from __future__ import annotations

import functools
import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import NamedTuple

# RFC 1123 section 2.1 names (labels to 63 octets, 253 in all) and IPv4 literals, with "_" as the resolvers of
# Kubernetes and Docker accept it.
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*\.?", re.ASCII)
# What looks like an IPv4 address is one, or no host at all (WHATWG URL section 3.5, "ends in a number").
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+){3}", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


class MalformedEndpoint(ValueError):
    """The text is not `host:port`; the message says which part is wrong and never repeats the text."""


class Endpoint(NamedTuple):
    """A host (lower case, IPv6 compressed and without brackets, IPv4-mapped as IPv4) and a port (1 to 65535).

    Two endpoints are equal when their normalised hosts and ports are. (A named tuple: the tables that a
    request looks into hash and compare one a dozen times, which for a dataclass runs Python each time.)
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Read `host:port` or `[v6]:port`, with an optional `http://` before it (contract section 1).

        Raises MalformedEndpoint when host or port is missing or out of its grammar.
        """
        return _parsed(text.strip())

    @property
    def netloc(self) -> str:
        """`host:port` as URLs and `Host` spell it: IPv6 in brackets (RFC 3986 section 3.2.2)."""
        return _netloc(self)

    def with_port(self, port: int) -> Endpoint:
        """The same host at another port."""
        return Endpoint(self.host, port)


def is_host_name(text: str) -> bool:
    """Whether it can be looked up, or be in a certificate: a name in the grammar above, and no address."""
    return bool(_NAME.fullmatch(text)) and not _NUMBERS.fullmatch(text.removesuffix("."))


@functools.lru_cache(1024)  # engines are few; a host has at most 253 characters
def _netloc(endpoint: Endpoint) -> str:
    host, port = endpoint
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# Pods are few and named again and again; only well-formed texts, at most 300 characters, are remembered.
@functools.lru_cache(1024)
def _parsed(text: str) -> Endpoint:
    rest = text[7:].removesuffix("/") if text[:7].lower() == "http://" else text
    host, colon, port = rest.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise MalformedEndpoint("no port from 1 to 65535 after the host")
    return Endpoint(_normal_host(host), int(port))


def _normal_host(host: str) -> str:
    if host.startswith("[") and host.endswith("]") and "%" not in host:  # no zone: any text may follow it
        try:
            address = IPv6Address(host[1:-1])
            return str(address.ipv4_mapped or address.compressed)  # RFC 4291 2.5.5.2: the same host
        except AddressValueError:
            raise MalformedEndpoint("the host between brackets is not an IPv6 address") from None
    if not _NAME.fullmatch(host):
        raise MalformedEndpoint("no valid host before the port")
    host = host.lower().removesuffix(".")
    if _NUMBERS.fullmatch(host):
        try:
            return str(IPv4Address(host))
        except AddressValueError:
            raise MalformedEndpoint("the host is not an IPv4 address") from None
    return host
