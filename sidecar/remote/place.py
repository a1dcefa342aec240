"""Names an engine or a sidecar as a user does: by URL.

Rule: pure; what cannot be one is refused with a message that can stand behind a flag's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, urlsplit

from sidecar.endpoint import Endpoint, MalformedEndpoint
from sidecar.remote.texts import quoted

_PORTS = {"http": 80, "https": 443}
WIDEST_PORT = 65535
# RFC 3986 section 3.3; the bound is far beyond any gateway's prefix.
_PATH = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2}){0,512}", re.ASCII)


class MalformedPlace(ValueError):
    """The text is not a URL of an engine; the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """`scheme://host:port/path`. path: in front of `/v1/...`, empty or without a slash at its end."""

    scheme: str
    endpoint: Endpoint
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read a URL; `host:port` alone is http. Raises MalformedPlace, without a password or a query."""
        named = quoted(re.split("[?#]", text)[0]) if "@" not in text else "a URL with '@'"
        parts = _split(text if "://" in text else f"http://{text}", named)
        if parts.query or parts.fragment or parts.username is not None:
            raise MalformedPlace(f"{named} has more than a host, a port and a path")
        if not _PATH.fullmatch(parts.path):
            raise MalformedPlace(f"{named} has a path that is none (RFC 3986)")
        try:
            port = _PORTS[parts.scheme] if parts.port is None else parts.port
            host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
            endpoint = Endpoint.parse(f"{host or ''}:{port}")
        except (MalformedEndpoint, ValueError):
            raise MalformedPlace(f"{named} has no valid host and port") from None
        return cls(parts.scheme, endpoint, parts.path.rstrip("/"))

    @property
    def url(self) -> str:
        """The URL, without a slash at its end."""
        return f"{self.scheme}://{self.endpoint.netloc}{self.path}"

    def of_rank(self, rank: int) -> Place:
        """The same of a data-parallel rank: ports are counted up (contract section 6)."""
        return replace(self, endpoint=self.endpoint.with_port(self.endpoint.port + rank))


def _split(text: str, named: str) -> SplitResult:
    """Raises MalformedPlace."""
    if not text.isprintable() or " " in text:  # urlsplit drops some of these without a word
        raise MalformedPlace(f"{named} has characters that no URL has")
    try:
        parts = urlsplit(text)
    except ValueError:  # brackets that are not a pair, or around no address
        raise MalformedPlace(f"{named} has no valid host and port") from None
    if parts.scheme not in _PORTS:
        raise MalformedPlace(f"{named} is neither an http nor an https URL")
    return parts
