"""What can go wrong between a command and an engine, in words for a terminal.

Rule: pure; third-party exceptions are mapped to these in one place, `client`.
"""

from __future__ import annotations


class RemoteError(Exception):
    """Talking to an engine failed; the message begins with its URL."""


class NoAnswer(RemoteError):
    """No connection, or no whole answer in time."""


class TooLate(NoAnswer):
    """A connection, and no whole answer in time."""


class Uncounted(RemoteError):
    """What it has counted cannot be told from its answer."""


class Refused(RemoteError):
    """It answered, and said no. status: HTTP's, or of a stream's error event its code."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
