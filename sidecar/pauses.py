"""Remembers the engines whose pulls are suspended since one hung, and tries them again one at a time.

Rule: acts only in looking at the clock. Asking begins no trial: one begins when its leg is sent, and is over
when that is.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import monotonic

from sidecar.endpoint import Endpoint
from sidecar.observers import ExchangeRecord, LegRecord

logger = logging.getLogger("sidecar.pulls")

# Engines whose pulls are suspended: the decoder, and prefillers. The bound is for made-up headers.
MAX_ENGINES = 256


@dataclass(slots=True)
class _Pause:
    """An engine whose pulls hang. since_s: when the pause began; until_s: no pull before.

    trial: the exchange whose pull is tried, None without one; trial_s: when the last trial began.
    """

    length_s: float
    since_s: float
    until_s: float
    trial: ExchangeRecord | None = None
    trial_s: float = 0.0


class Pauses:
    """The table of engines. first_s, longest_s: how long pauses are, which grow from one to the next.

    late_s: how long a leg that pulls may be without a byte of its answer (`--pull-rescue-after`).
    """

    def __init__(self, late_s: float, *, first_s: float, longest_s: float) -> None:
        self._late_s = late_s
        self._first_s = first_s
        self._longest_s = longest_s
        self._paused: dict[Endpoint, _Pause] = {}

    def suspended(self, engine: Endpoint) -> bool:
        """Whether this engine is not to be made to pull now."""
        pause = self._paused.get(engine)
        if pause is None:
            return False
        now_s = monotonic()
        # A trial that nobody can judge, as an answer of one piece may be, does not keep others off for ever.
        trying = pause.trial is not None and now_s - pause.trial_s < 2 * self._late_s
        return now_s < pause.until_s or trying

    def admits(self, engine: Endpoint, exchange: ExchangeRecord) -> bool:
        """Whether a leg that is sent now may make this engine pull: as the trial, where it is paused."""
        pause = self._paused.get(engine)
        if pause is None:
            return True
        if self.suspended(engine):
            return False
        pause.trial, pause.trial_s = exchange, monotonic()
        return True

    def ended(self, record: LegRecord) -> None:
        """A leg that was to pull is over, and did not hang.

        Only an answer of 2xx that has begun shows that the pull came through (an engine refuses a request
        without a look at its pull), and only to a leg sent since the pause began. All else gives its trial
        back. Where no byte came, the next begins no sooner than this one would have been late: clients that
        leave early would hang one after the other.
        """
        pause = self._paused.get(record.leg.target)
        if pause is None or record.started_s < pause.since_s:
            return
        begun = record.first_byte_s is not None
        if begun and record.status is not None and 200 <= record.status < 300:
            del self._paused[record.leg.target]
            logger.info("pulls of %s are answered again", record.leg.target.netloc)
        elif pause.trial is record.exchange:
            pause.trial = None
            if not begun:
                pause.until_s = max(pause.until_s, pause.trial_s + self._late_s)

    def begin(self, record: LegRecord) -> bool:
        """This leg's pull hung: suspend its engine's. Whether they were not before."""
        engine, now_s = record.leg.target, monotonic()
        before = self._paused.get(engine)
        if before is not None and record.started_s < before.since_s:
            return False  # it hung beside the one that began the pause, and was no trial of it
        length_s = min(before.length_s * 2, self._longest_s) if before else self._first_s
        self._paused.pop(engine, None)
        if len(self._paused) >= MAX_ENGINES:
            del self._paused[next(iter(self._paused))]
        self._paused[engine] = _Pause(length_s, now_s, now_s + length_s)
        return before is None
