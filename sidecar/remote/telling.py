"""Says what an answer was, or why there is none, without a byte of its body.

Rule: no I/O; everything that it gives can be printed.
"""

from __future__ import annotations

import os
import socket
import ssl

import httpx

from sidecar.remote.texts import shown

# `application/json; charset=utf-8`, and room.
_MOST_KIND_CHARACTERS = 60


def told(answer: httpx.Response) -> str:
    """Status, kind and size of a whole answer: `302 (text/html, 120 bytes)`."""
    return f"{answer.status_code} ({kind_of(answer)}, {len(answer.content):,} bytes)"


def kind_of(answer: httpx.Response) -> str:
    """Its media type."""
    return shown(answer.headers.get("content-type", "no content-type"), _MOST_KIND_CHARACTERS)


def why(error: BaseException) -> str:
    """What the system said, behind what is said of all attempts: refused, no such host, no file left."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, ssl.SSLError | socket.gaierror) and behind.strerror:
            return shown(behind.strerror)
        if isinstance(behind, OSError) and behind.errno:
            return os.strerror(behind.errno)
        behind = behind.__cause__ or behind.__context__
    # h11 repeats what came in place of HTTP, behind its own words.
    return shown(str(error).partition(": bytearray(")[0]) or type(error).__name__
