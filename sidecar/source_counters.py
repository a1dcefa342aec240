"""Asks the sources of pulls, through their own host and port, what their engines gave: the third layer.

Rule: acts, beside the exchanges and never in their way. A source is looked at only after pulls from it, one
look at a time and at most one in an interval; few at once, of a bounded number of sources, and only of those
that may be contacted now. A source that cannot be looked at leaves what it says of its pulls unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from time import monotonic
from types import TracebackType

from sidecar import engine_counters, giving
from sidecar.evidence import SETTLE_S, Outcome, Sample
from sidecar.giving import RISEN, Says
from sidecar.observers import LegRecord, Observer, Observers, PullRecord, Watch
from sidecar.plan import Peer, Role
from sidecar.verify import Scrape

logger = logging.getLogger("sidecar.pulls")

# A pool has at most hundreds of engines; the bound is for made-up headers. What is beyond it is unknown.
MAX_SOURCES = 256
# Pulls of which their sources have yet to say something, of all sources, some 400 bytes each.
MAX_CLAIMS = 4096
# Looks at the same time: each may hold a text of 8 MiB (`scraping`).
MAX_LOOKS = 4
# How often it is seen to whether a source is due, in seconds.
TICK_S = 0.2
# A source publishes what it gave at the end of the step in which it gave it, in seconds: a step with a large
# prefill takes some tenths. A count that has not risen by then will not.
LATE_S = 2.0
# Looks in a row that may fail until a source is left alone for a while.
MAX_FAILURES = 3
# How long that is, in seconds: an engine takes a minute or more to start. What a source says is waited for
# as long beyond its interval.
PAUSE_S = 60.0

_UNWATCHED: Watch = nullcontext()


@dataclass(slots=True)
class _Window:
    """What began after one look at a source; None: before the first. moved_bytes: by our pulls, surely."""

    sample: Sample | None
    moved_bytes: int = 0


@dataclass(slots=True)
class _Source:
    """A source, what was last seen of it, and the pulls of which it has to say something (by identity)."""

    peer: Peer
    window: _Window = field(default_factory=lambda: _Window(None))
    looked_s: float = -inf
    looking: bool = False
    failures: int = 0
    claims: dict[int, _Claim] = field(default_factory=dict)


@dataclass(slots=True)
class _Claim:
    """A pull. leg: until it has ended. told: what it moved, as far as anybody will know."""

    source: _Source
    window: _Window
    pull: PullRecord
    leg: LegRecord | None
    end_s: float | None = None
    told: bool = False

    @property
    def ended_s(self) -> float:
        """When its blocks had arrived at the latest; infinity while it runs."""
        end_s = self.end_s if self.leg is None else self.leg.first_byte_s
        return inf if end_s is None else end_s


class SourceCounters(Observer):
    """`--pull-verification-sources`: an observer of legs, and of pulls before they are told to others.

    may: whether a source may be contacted now. tell: whoever is told of pulls. interval_s: shortest time
    between two looks at a source. `await sources.run()` beside the exchanges.
    """

    def __init__(
        self, scrape: Scrape, may: Callable[[Peer], bool], tell: Observers, *, interval_s: float
    ) -> None:
        self._scrape = scrape
        self._may = may
        self._tell = tell
        self._interval_s = interval_s
        self._sources: dict[Peer, _Source] = {}
        self._claims: dict[int, _Claim] = {}
        self._looks = 0
        self._wanted = asyncio.Event()

    def leg(self, record: LegRecord) -> Watch:
        """See Observer.leg. The verifier is entered before, and gives the record its pull."""
        return _UNWATCHED if record.leg.pull is None else _Watching(self, record)

    def began(self, record: LegRecord) -> _Claim | None:
        """A leg that pulls begins. None where its source will not be asked."""
        assert record.leg.pull is not None
        source = self._source(record.leg.pull.source)
        if source is None or record.pull is None or len(self._claims) >= MAX_CLAIMS:
            return None
        claim = _Claim(source, source.window, record.pull, record)
        source.claims[id(record.pull)] = self._claims[id(record.pull)] = claim
        self._wanted.set()
        return claim

    def ended(self, claim: _Claim, record: LegRecord) -> None:
        """The leg is over."""
        claim.end_s = record.first_byte_s or record.ended_s or monotonic()
        claim.leg = None

    def pull(self, record: PullRecord) -> None:
        """It is known what a pull moved: tell it, and what its source says if that is known too."""
        claim = self._claims.get(id(record))
        if claim is None:
            self._say(record, Says.UNKNOWN)
        else:
            claim.told = True
            claim.window.moved_bytes += record.moved_bytes or 0
            # A pull that was rescued may have ended at any time.
            if record.outcome is Outcome.RESCUED or claim.source.failures >= MAX_FAILURES:
                self._settle(claim, Says.UNKNOWN)
            else:
                self._judge(claim.source, [claim])
        self._tell.pull(record)

    async def run(self) -> None:
        """Look at sources while there are pulls of which they have to say something, for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wanted.wait()
                await asyncio.sleep(TICK_S)
                now_s = monotonic()
                for source in self._sources.values():
                    if self._looks < MAX_LOOKS and self._is_due(source, now_s):
                        source.looking, source.looked_s = True, now_s
                        self._looks += 1
                        group.create_task(self._look(source))
                self._give_up(self._claims.values(), now_s - self._interval_s - PAUSE_S)
                if not self._claims:
                    self._wanted.clear()

    def _source(self, peer: Peer) -> _Source | None:
        """Its entry, now the last; in a full table in place of the oldest that has nothing to say."""
        source = self._sources.pop(peer, None)
        if source is None:
            if len(self._sources) >= MAX_SOURCES:
                oldest = next((one for one in self._sources.values() if not one.claims), None)
                if oldest is None:
                    return None
                del self._sources[oldest.peer]
            source = _Source(peer)
        self._sources[peer] = source
        return source

    def _is_due(self, source: _Source, now_s: float) -> bool:
        pause_s = PAUSE_S if source.failures >= MAX_FAILURES else self._interval_s
        if source.looking or not source.claims or now_s < source.looked_s + pause_s:
            return False
        seen_s = source.window.sample.at_s if source.window.sample else -inf
        return any(
            seen_s < claim.ended_s + wait_s <= now_s
            for claim in source.claims.values()
            for wait_s in (SETTLE_S, LATE_S)
        )

    async def _look(self, source: _Source) -> None:
        at_s = monotonic()  # before the request: what is given while it is answered belongs to the next one
        try:
            if not self._may(source.peer):
                raise OSError("it may not be contacted now")
            counters = engine_counters.read(await self._scrape(Role.PREFILL, source.peer.endpoint))
        except OSError as error:
            source.failures += 1
            if source.failures == MAX_FAILURES:
                reason = str(error) or type(error).__name__
                logger.info("source %s cannot be asked what it gave: %s", source.peer.endpoint.netloc, reason)
                self._give_up(source.claims.values(), inf)
            return
        finally:
            source.looking = False
            self._looks -= 1
        source.failures = 0
        source.window = _Window(Sample(at_s, counters))
        self._judge(source, source.claims.values())

    def _judge(self, source: _Source, asked: Iterable[_Claim]) -> None:
        """Settle those of these pulls of which the last look says something for good."""
        after = source.window.sample
        if after is None:
            return
        before_s = after.at_s - SETTLE_S
        ended = [claim for claim in asked if claim.told and claim.ended_s <= before_s]
        for _, group in groupby(ended, lambda claim: id(claim.window)):
            claims = list(group)
            window = claims[0].window
            gave = giving.given(window.sample.counters if window.sample else None, after.counters)
            ended_bytes = sum(claim.pull.moved_bytes or 0 for claim in claims)
            for claim in claims:
                says = giving.says(gave, claim.pull.moved_bytes, ended_bytes, window.moved_bytes)
                if says in RISEN or claim.ended_s + LATE_S <= after.at_s:
                    self._settle(claim, says)

    def _give_up(self, claims: Iterable[_Claim], before_s: float) -> None:
        """Wait no longer for what is said of pulls that had ended before."""
        for claim in [one for one in claims if one.told and one.ended_s < before_s]:
            self._settle(claim, Says.UNKNOWN)

    def _settle(self, claim: _Claim, says: Says) -> None:
        key = id(claim.pull)
        if self._claims.pop(key, None) is not None:
            del claim.source.claims[key]
            self._say(claim.pull, says)

    def _say(self, pull: PullRecord, says: Says) -> None:
        pull.source_says = says
        self._tell.source(pull)


class _Watching:
    """A leg that pulls, for as long as it runs."""

    __slots__ = ("_claim", "_record", "_sources")

    def __init__(self, sources: SourceCounters, record: LegRecord) -> None:
        self._sources = sources
        self._record = record

    def __enter__(self) -> None:
        self._claim = self._sources.began(self._record)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._claim is not None:
            self._sources.ended(self._claim, self._record)
