"""Remembers the answers of questions that may be asked once for many requests.

Rule: acts only in looking at the clock. Bounded, expiring, and forgotten when a leg that relied on it fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

from sidecar.plan import Leg, Reply

Key = tuple[str, bytes]

# One answer per prefiller and question; a pool has at most hundreds of prefillers. The bound is for made-up
# headers.
MAX_ENTRIES = 1024


class Replies:
    """The cache behind `Ask.cache_s`."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[Key, tuple[float, Reply]] = {}

    def get(self, leg: Leg) -> Reply | None:
        """The answer, if there is one that may still be used."""
        until_s, reply = self._kept.get(key_of(leg), (0.0, None))
        return reply if until_s > monotonic() else None

    def keep(self, leg: Leg, reply: Reply, for_s: float) -> None:
        """Remember it for so many seconds; the oldest goes when there are too many."""
        self._kept.pop(key_of(leg), None)
        if len(self._kept) >= MAX_ENTRIES:
            del self._kept[next(iter(self._kept))]
        self._kept[key_of(leg)] = (monotonic() + for_s, reply)

    def forget(self, keys: Iterable[Key]) -> None:
        """What these said has turned out to be stale, or may have."""
        for key in keys:
            self._kept.pop(key, None)


def key_of(leg: Leg) -> Key:
    """What is asked of whom."""
    return leg.target.netloc, leg.path
