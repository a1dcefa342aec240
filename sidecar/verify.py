"""Verifies pulls: watches the legs that direct one, and reads the engines' counters around them.

Rule: acts, beside the exchanges and never in their way. It scrapes only while pulls are unsettled, at most
once in an interval per engine; an engine that cannot be scraped leaves its pulls unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from time import monotonic
from types import TracebackType

from sidecar import engine_counters, evidence
from sidecar.endpoint import Endpoint
from sidecar.evidence import Claim, Outcome, Sample
from sidecar.observers import LegRecord, Observer, PullRecord, Watch
from sidecar.plan import Role

logger = logging.getLogger("sidecar.pulls")

# Gets the text of an engine's /metrics. Raises OSError when that cannot be had.
Scrape = Callable[[Role, Endpoint], Awaitable[bytes]]

# Prefillers that this sidecar sends to; the bound is for made-up headers. Their pulls beyond it are unknown.
MAX_ENGINES = 256
# Unsettled pulls of one engine, some 500 bytes each: more than vLLM runs at once by far.
MAX_CLAIMS = 4096
# How long the end of an answer, which carries its usage, is waited for before a pull is told without it, in
# seconds: long answers take minutes, and an operator should not.
USAGE_WAIT_S = 10.0
# Scrapes in a row that may fail before what waits for them is unknown.
MAX_FAILURES = 3

_UNWATCHED: Watch = nullcontext()
_NOTHING = Outcome.NOTHING  # for every pull, see evidence.py


@dataclass(slots=True)
class _Watched:
    """One unsettled pull. leg: until it has ended, since it holds a whole prompt; the pull knows the rest."""

    leg: LegRecord | None
    pull: PullRecord
    claim: Claim


@dataclass(slots=True)
class _Engine:
    """One engine's last sample and its unsettled pulls. sole: this process directs all of its pulls."""

    role: Role
    sole: bool
    sample: Sample | None = None
    failures: int = 0
    watched: list[_Watched] = field(default_factory=list)


class Verifier(Observer):
    """`--pull-verification`: an observer of legs; `await verifier.run()` beside the exchanges.

    scrape: None knows only what engines' answers report, and tells of each pull at the end of its leg. tell:
    is given each pull once it is settled. decoder: the local engine; sole: whether nobody else directs its
    pulls. interval_s: shortest time between two scrapes of an engine.
    """

    def __init__(
        self,
        scrape: Scrape | None,
        tell: Callable[[PullRecord], None],
        decoder: Endpoint,
        *,
        interval_s: float,
        sole: bool,
    ) -> None:
        self._scrape = scrape
        self._tell = tell
        self._interval_s = interval_s
        self._engines = {decoder: _Engine(Role.DECODE, sole)}
        self._wanted = asyncio.Event()

    def leg(self, record: LegRecord) -> Watch:
        """See Observer.leg."""
        return _UNWATCHED if record.leg.pull is None else _Watching(self, record)

    def began(self, record: LegRecord) -> _Watched | None:
        """A leg that pulls begins. None when its pull is to be told at its end, since nobody looks."""
        pull = record.pull = _pull_of(record)
        engine = self._engine(record)
        if engine is None or len(engine.watched) >= MAX_CLAIMS:
            return None
        watched = _Watched(record, pull, Claim(record.started_s))
        engine.watched.append(watched)
        self._wanted.set()
        return watched

    def ended(self, record: LegRecord, watched: _Watched | None) -> None:
        """The leg is over, and all that its answer says of the pull is known."""
        pull = record.pull
        assert pull is not None
        if pull.outcome is None:  # not told before its leg's end
            _fill(pull, record)
        if watched is None:
            self._tell_of(pull, Claim(record.started_s), None)
        else:
            watched.leg = None

    async def run(self) -> None:
        """Scrape while there is something to settle, for ever."""
        if self._scrape is None:
            return
        await self._sample(*next(iter(self._engines.items())))
        while True:
            await self._wanted.wait()
            await asyncio.sleep(self._interval_s)
            waiting = [(target, engine) for target, engine in self._engines.items() if engine.watched]
            if not waiting:
                self._wanted.clear()
            for _, engine in waiting:
                _end_claims(engine)
            async with asyncio.TaskGroup() as group:
                for target, engine in waiting:
                    if any(watched.claim.ended_s and not watched.claim.settled for watched in engine.watched):
                        group.create_task(self._sample(target, engine))
            for _, engine in waiting:
                self._settle(engine)

    def _engine(self, record: LegRecord) -> _Engine | None:
        if self._scrape is None:
            return None
        engine = self._engines.get(record.leg.target)
        if engine is None and len(self._engines) < MAX_ENGINES:
            # A prefiller serves many decoders, whose sidecars direct its pulls too.
            engine = self._engines[record.leg.target] = _Engine(record.leg.role, sole=False)
        return engine

    async def _sample(self, target: Endpoint, engine: _Engine) -> None:
        assert self._scrape is not None
        at_s = monotonic()  # before the request: what is counted while it is answered belongs to the next one
        try:
            counters = engine_counters.read(await self._scrape(engine.role, target))
        except OSError as error:
            engine.failures += 1
            if engine.failures == MAX_FAILURES:
                reason = str(error) or type(error).__name__
                logger.warning("pulls of %s cannot be verified: %s", target.netloc, reason)
            return
        engine.failures = 0
        sample = Sample(at_s, counters, monotonic())
        claims = [watched.claim for watched in engine.watched]
        evidence.account(claims, engine.sample, sample, sole=engine.sole)
        engine.sample = sample

    def _settle(self, engine: _Engine) -> None:
        """Tell of the pulls of which nothing more will be known."""
        now_s, left = monotonic(), list[_Watched]()
        for watched in engine.watched:
            claim = watched.claim
            known = claim.settled or (claim.ended_s is not None and engine.failures >= MAX_FAILURES)
            over = watched.leg is None or now_s - (claim.ended_s or now_s) > USAGE_WAIT_S
            if known and over:
                if watched.leg is not None:
                    _fill(watched.pull, watched.leg)
                self._tell_of(watched.pull, claim, engine.sample)
            else:
                left.append(watched)
        engine.watched = left

    def _tell_of(self, pull: PullRecord, claim: Claim, sample: Sample | None) -> None:
        pull.outcome = Outcome.RESCUED if pull.rescued else evidence.outcome(claim, pull.cached_tokens)
        nothing = pull.outcome is _NOTHING
        pull.local = nothing and evidence.was_local(claim, pull.cached_tokens)
        zero = 0 if nothing else None
        if claim.sampled_s is None:  # nothing was ever counted, which is not a count of nothing
            pull.moved_bytes = pull.moved_tokens = zero
        else:
            pull.moved_bytes = _whole(claim.moved_bytes.exact, zero)
            pull.moved_tokens = _whole(claim.moved_tokens.exact, zero)
        if pull.moved_tokens and sample is not None:
            pull.saved_s = evidence.seconds_avoided(pull.moved_tokens, sample.counters)
        self._tell(pull)


class _Watching:
    """A leg that pulls, for as long as it runs. (A generator's context manager costs twice as much.)"""

    __slots__ = ("_record", "_verifier", "_watched")

    def __init__(self, verifier: Verifier, record: LegRecord) -> None:
        self._verifier = verifier
        self._record = record

    def __enter__(self) -> None:
        self._watched = self._verifier.began(self._record)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._verifier.ended(self._record, self._watched)


def _pull_of(record: LegRecord) -> PullRecord:
    leg, exchange = record.leg, record.exchange
    assert leg.pull is not None
    return PullRecord(
        source=leg.pull.source.p2p,
        engine=leg.target,
        kv_request_id=leg.pull.kv_request_id,
        role=leg.role,
        request_id=exchange.request_id,
        trace_id=exchange.trace_id,
        started_s=record.started_s,
    )


def _end_claims(engine: _Engine) -> None:
    """A pull's blocks have all come when the answer begins; at the latest when its leg has ended."""
    for watched in engine.watched:
        if watched.claim.ended_s is None:
            seen = watched.leg or watched.pull
            watched.claim.ended_s = seen.first_byte_s or seen.ended_s


def _fill(pull: PullRecord, leg: LegRecord) -> None:
    pull.first_byte_s, pull.ended_s = leg.first_byte_s, leg.ended_s
    pull.prompt_tokens, pull.cached_tokens = leg.prompt_tokens, leg.cached_tokens
    pull.rescued = leg.rescued


def _whole(amount: float | None, otherwise: int | None) -> int | None:
    """A count as a whole number; `otherwise` where that is one or the amount is not known."""
    return otherwise if otherwise is not None or amount is None else round(amount)
