"""httpx's request and response for readers of raw header lists: what costs is made when it is asked for.

Rule: each is what it is a subclass of, for any transport and any reader; `raw_headers` is the list itself.
Source: httpx 0.28 `_models.py`, whose constructors take 10 µs together, mostly for `Headers`.
"""

from functools import cached_property
from typing import Any, NamedTuple

import httpx

Fields = list[tuple[bytes, bytes]]

# Where connections lead: scheme, host (ASCII, no brackets), port (None: the scheme's own).
Key = tuple[str, bytes, int | None]


class Place(NamedTuple):
    """A URL and what is made of it for every request."""

    url: httpx.URL
    key: Key

    @classmethod
    def of(cls, url: httpx.URL) -> "Place":
        """The place of this URL."""
        return cls(url, (url.scheme, url.raw_host, url.port))


class RawRequest(httpx.Request):
    """A request made of raw parts. raw_headers: as they go on the wire, framing included.

    body: its bytes, or the stream that they come from; known has them in the first case.
    """

    def __init__(
        self,
        method: str,
        place: Place,
        raw_headers: Fields,
        body: httpx.AsyncByteStream | bytes,
        target: bytes,
    ) -> None:
        self.method = method
        self.url, self.key = place
        self.raw_headers = raw_headers
        self.target = target
        if isinstance(body, bytes):
            self.known: bytes | None = body
        else:
            self.known = None
            self.stream = body

    # What httpx's own transports read. (Cached properties: a `__getattr__` makes every look at any attribute
    # of its class four times as dear, typeobject.c of CPython 3.11, slot_tp_getattr_hook.)

    @cached_property
    def headers(self) -> httpx.Headers:  # type: ignore[override]  # an attribute that comes later
        """The list as httpx's mapping."""
        return httpx.Headers(self.raw_headers)

    @cached_property
    def stream(self) -> httpx.AsyncByteStream | httpx.ByteStream:  # type: ignore[override]
        """The body, where its bytes are known."""
        return httpx.ByteStream(self.known or b"")

    @cached_property
    def extensions(self) -> dict[str, Any]:  # type: ignore[override]
        """The target, byte for byte."""
        return {"target": self.target}


class RawResponse(httpx.Response):
    """A response at its head, its body still to be read from `stream`."""

    def __init__(
        self, status_code: int, raw_headers: Fields, stream: httpx.AsyncByteStream, extensions: dict[str, Any]
    ) -> None:
        self.status_code = status_code
        self.raw_headers = raw_headers
        self.stream = stream
        self.extensions = extensions

    def _complete(self) -> None:
        super().__init__(
            self.status_code, headers=self.raw_headers, stream=self.stream, extensions=self.extensions
        )


class _Rest:
    """One attribute of the rest of httpx's own state, all of which is made at the first look at any of it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, response: RawResponse | None, kind: type[RawResponse]) -> Any:
        if response is None:
            return self
        response._complete()
        return response.__dict__[self._name]


for _name in vars(httpx.Response(200, stream=httpx.ByteStream(b""))):
    setattr(RawResponse, _name, _Rest(_name))


def raw_headers(message: httpx.Request | httpx.Response) -> Fields:
    """The header list of any message of httpx: order, duplicates, case and bytes as they came."""
    if isinstance(message, RawRequest | RawResponse):
        return message.raw_headers
    return message.headers.raw
