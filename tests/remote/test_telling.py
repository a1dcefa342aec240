"""Why there is no answer, in the system's words."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest

from sidecar.remote.telling import why


def behind(cause: BaseException) -> BaseException:
    """As httpx wraps it."""
    outer = ValueError("All connection attempts failed")
    outer.__cause__ = OSError("All connection attempts failed")
    outer.__cause__.__cause__ = cause
    return outer


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (behind(OSError(errno.ECONNREFUSED, "Connect call failed ('h', 1)")), "Connection refused"),
        # Of ours, not of the peer.
        (behind(OSError(errno.EMFILE, "x")), "Too many open files"),
        (behind(socket.gaierror(-2, "Name or service not known")), "Name or service not known"),
        (behind(ssl.SSLError(1, "[SSL] wrong version")), "[SSL] wrong version"),
        (ValueError("illegal status line: \x1b[31m"), r"illegal status line: \x1b[31m"),
        (ValueError("illegal status line: bytearray(b'se: cret')"), "illegal status line"),
        (ValueError(), "ValueError"),
    ],
)
def test_it_is_what_the_system_said(error: BaseException, words: str) -> None:
    assert why(error) == words
