"""Reads a peer's answer as it came, no further than to a bound.

Rule: acts only in reading. Nothing is inflated: a thousand bytes of gzip within gzip are a gigabyte, and
httpx unpacks a whole piece before anyone can count it. So identity is asked for, and nothing else is read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

# What a question whose answer is read here is asked with (RFC 9110 section 12.5.3).
IDENTITY = {"accept-encoding": "identity"}

# Of a header that is not what it should be, so much is shown.
_SHOWN_CHARACTERS = 60


class Streamed(Protocol):
    """A response of httpx, or of httpx2, whose body has not been read."""

    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def stream(self) -> Any: ...


def refuse_packed(headers: Mapping[str, str]) -> None:
    """Raises OSError for the head of an answer that is packed."""
    coding = headers.get("content-encoding", "")
    if any(name.strip().lower() not in ("", "identity") for name in coding.split(",")):
        raise OSError(f"content-encoding {coding[:_SHOWN_CHARACTERS]!r}, where identity was asked for")


async def pieces(response: Streamed, most_bytes: int) -> AsyncIterator[bytes]:
    """The body of a streamed answer as it comes.

    Raises OSError where it is packed, before any of it is read, or over `most_bytes`; httpx's errors pass.
    """
    refuse_packed(response.headers)
    total_bytes = 0
    # What `aiter_raw` reads, and what a response has too that was made whole (`httpx.MockTransport`).
    async for piece in response.stream:
        total_bytes += len(piece)
        if total_bytes > most_bytes:
            raise OSError(f"over {most_bytes} bytes")
        yield piece


async def whole(response: Streamed, most_bytes: int) -> bytes:
    """All of it. Raises as `pieces`."""
    return b"".join([piece async for piece in pieces(response, most_bytes)])
