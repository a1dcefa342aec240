"""Names an engine or a sidecar as a user does: by URL.

Rule: pure; what cannot be one is refused with a message that can stand behind a flag's name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from sidecar.endpoint import Endpoint, MalformedEndpoint

_PORTS = {"http": 80, "https": 443}


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
        """Read a URL; `host:port` alone is http. Raises MalformedPlace."""
        parts = urlsplit(text if "://" in text else f"http://{text}")
        if parts.scheme not in _PORTS:
            raise MalformedPlace(f"{text!r} is neither an http nor an https URL")
        if parts.query or parts.fragment or parts.username is not None:
            raise MalformedPlace(f"{text!r} has more than a host, a port and a path")
        try:
            port = parts.port or _PORTS[parts.scheme]
            host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
            endpoint = Endpoint.parse(f"{host or ''}:{port}")
        except (MalformedEndpoint, ValueError):
            raise MalformedPlace(f"{text!r} has no valid host and port") from None
        return cls(parts.scheme, endpoint, parts.path.rstrip("/"))

    @property
    def url(self) -> str:
        """The URL, without a slash at its end."""
        return f"{self.scheme}://{self.endpoint.netloc}{self.path}"

    def of_rank(self, rank: int) -> Place:
        """The same of a data-parallel rank: ports are counted up (contract section 6)."""
        return replace(self, endpoint=self.endpoint.with_port(self.endpoint.port + rank))
