"""How the watch reaches the Kubernetes API, without saying by what client.

Rule: only names and types stand here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol


class ClusterError(Exception):
    """A request or a watch failed. status: the API's code, 0 for nonsense; None without any answer."""

    def __init__(self, status: int | None, message: str) -> None:
        super().__init__(message)
        self.status = status


class ClusterApi(Protocol):
    """Both requests raise ClusterError."""

    async def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """The body of one answer."""

    def watch(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes]:
        """The lines of an answer as they come, until the server ends it cleanly."""

    async def renew(self) -> None:
        """Make sure that what comes next uses the credentials and certificates as they are now."""

    async def aclose(self) -> None:
        """Close every connection."""
