"""Lets a pull go only to a source whose P2P port accepts connections: the source guard.

Rule: acts. vLLM 0.32 can hang every later pull of an engine after one contact with an unreachable peer, so a
peer is probed here first: at most one probe at a time per source, a request waits at most the budget, and
what a probe showed is remembered for a short, jittered time in a bounded table. A source that falls out of
the table takes its probe with it.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic
from types import TracebackType

from sidecar.endpoint import Endpoint
from sidecar.transport import Resolver

# A probe outlives the request that began it, so that a far source is known to the next; no longer than this.
_PROBE_TIMEOUT_S = 1.0
# Remembered times are spread by this share, so that sources learned together are not probed together.
_JITTER = 0.2
# A source in use is probed again, in the background, once this share of its time has passed.
_REFRESH_AT = 0.5


@dataclass(frozen=True, slots=True)
class GuardTimes:
    """budget_s: how long a request waits for an unknown source. good_s, bad_s: how long an outcome holds.

    table_entries: sources remembered; the least recently used goes first.
    """

    budget_s: float
    good_s: float
    bad_s: float
    table_entries: int


@dataclass(frozen=True, slots=True)
class Probed:
    """Whether a source accepted a connection when it was last probed, and whether that still counts."""

    good: bool
    holds: bool


@dataclass(slots=True)
class _Source:
    """What is known of one source: the last probe's outcome and when it is to be renewed and forgotten."""

    good: bool = False
    refresh_at_s: float = 0.0
    expires_at_s: float = 0.0
    probe: asyncio.Task[None] | None = None

    def cancel_probe(self) -> None:
        if self.probe:
            self.probe.cancel()


class SourceGuard:
    """Use as an asynchronous context manager: its probes live in its task group. probes: begun so far.

    resolver looks the sources' names up; to be shared by all of the loop.
    """

    def __init__(self, times: GuardTimes, resolver: Resolver | None = None) -> None:
        self._times = times
        self._resolver = resolver or Resolver()
        self._sources: OrderedDict[Endpoint, _Source] = OrderedDict()
        self._probes = asyncio.TaskGroup()
        self.probes = 0

    @property
    def known(self) -> int:
        """How many sources are remembered."""
        return len(self._sources)

    @property
    def states(self) -> dict[Endpoint, Probed]:
        """What the last probe of each source showed; the source used last comes last."""
        now_s = monotonic()
        probed = ((p2p, source) for p2p, source in self._sources.items() if source.expires_at_s)
        return {p2p: Probed(source.good, holds=now_s < source.expires_at_s) for p2p, source in probed}

    def trusts(self, p2p: Endpoint) -> bool:
        """Whether the last probe of this P2P endpoint showed that it accepts; contacts nobody."""
        source = self._sources.get(p2p)
        return source is not None and source.good

    @property
    def standing(self) -> tuple[int, int]:
        """How many sources are known to be good and how many to be bad, now."""
        known = [probed.good for probed in self.states.values() if probed.holds]
        return sum(known), len(known) - sum(known)

    async def __aenter__(self) -> SourceGuard:
        await self._probes.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for source in self._sources.values():
            source.cancel_probe()
        await self._probes.__aexit__(kind, error, trace)

    async def admits(self, p2p: Endpoint) -> bool:
        """Whether a pull may be directed at this P2P endpoint; answers within the budget.

        A source that is not known in time is refused, and known when its probe ends.
        """
        source = self._source(p2p)
        now_s = monotonic()
        if now_s < source.expires_at_s:
            if source.good and now_s >= source.refresh_at_s:
                self._begin_probe(p2p, source)
            return source.good
        probe = self._begin_probe(p2p, source)
        await asyncio.wait((probe,), timeout=self._times.budget_s)
        return probe.done() and not probe.cancelled() and source.good

    def _source(self, p2p: Endpoint) -> _Source:
        source = self._sources.get(p2p)
        if source is None:
            source = self._sources[p2p] = _Source()
            while len(self._sources) > self._times.table_entries:
                _, forgotten = self._sources.popitem(last=False)
                forgotten.cancel_probe()
        else:
            self._sources.move_to_end(p2p)
        return source

    def _begin_probe(self, p2p: Endpoint, source: _Source) -> asyncio.Task[None]:
        if source.probe is None or source.probe.done():
            self.probes += 1
            source.probe = self._probes.create_task(self._probe(p2p, source))
        return source.probe

    async def _probe(self, p2p: Endpoint, source: _Source) -> None:
        good = await _accepts(p2p, self._resolver)
        hold_s = self._times.good_s if good else self._times.bad_s
        hold_s *= random.uniform(1 - _JITTER, 1 + _JITTER)
        now_s = monotonic()
        source.good = good
        source.refresh_at_s = now_s + hold_s * _REFRESH_AT
        source.expires_at_s = now_s + hold_s


async def _accepts(p2p: Endpoint, resolver: Resolver) -> bool:
    """Connect and close at once, which vLLM's listener takes calmly (400 in a row, seen on vLLM 0.32)."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            transport, _ = await resolver.connect(asyncio.Protocol, p2p.host, p2p.port)
    except (OSError, TimeoutError, UnicodeError):  # UnicodeError: a name that IDNA cannot encode
        return False
    transport.abort()
    return True
