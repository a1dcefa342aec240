"""Remembers what the pulls from each source have moved, and stops asking sources that give nothing.

Rule: acts only in looking at the clock. Peers that differ in hash seed, block size or parallelism give
nothing and no error: only a row of pulls that moved nothing tells.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from time import monotonic

from sidecar.endpoint import Endpoint
from sidecar.evidence import Outcome
from sidecar.giving import Says
from sidecar.observers import LegRecord, Observer, PullRecord, Watch

logger = logging.getLogger("sidecar.pulls")

# A pool has at most hundreds of engines. The bound is for made-up headers.
MAX_SOURCES = 1024

# For every pull, see evidence.py.
_GAVE, _NOTHING = (Outcome.MOVED, Outcome.PARTIAL), Outcome.NOTHING

CAUSES = (
    "another PYTHONHASHSEED, block size, model, KV dtype or tensor-parallel size, "
    "offload_prompt_only on the source, an endpoint picker with a stale index, or a source too busy to keep "
    "the blocks; compare vllm:cache_config_info and the engines' arguments"
)

_UNWATCHED: Watch = nullcontext()
_UNTOLD = "its own counters do not tell whether it gave anything"


@dataclass(frozen=True, slots=True)
class YieldRules:
    """threshold: pulls in a row that moved nothing until a source is reported (`--silent-zero-threshold`, 0:
    never). retry_s: while it is, one pull in so many seconds is tried (`--silent-zero-retry`); None goes on
    pulling (`--silent-zero-suspend=false`).
    """

    threshold: int
    retry_s: float | None


@dataclass(slots=True)
class Yield:
    """What one source has given. in_a_row: pulls since the last that moved something.

    says: how often its own counters said what of our pulls; of_row: the same of those in a row.
    """

    pulls: int = 0
    in_a_row: int = 0
    moved_bytes: int = 0
    moved_tokens: int = 0
    silent: bool = False
    trial_s: float = 0.0
    says: dict[Says, int] = field(default_factory=dict)
    of_row: dict[Says, int] = field(default_factory=dict)


class Yields(Observer):
    """The table of sources; an observer of legs that pull, which is told of their pulls."""

    def __init__(self, rules: YieldRules) -> None:
        self._rules = rules
        self._sources: dict[Endpoint, Yield] = {}

    @property
    def sources(self) -> dict[Endpoint, Yield]:
        """Every source that is remembered, by its P2P endpoint; the one told of last comes last."""
        return self._sources

    @property
    def silent(self) -> int:
        """How many sources give nothing."""
        return sum(entry.silent for entry in self._sources.values())

    def suspended(self, source: Endpoint) -> bool:
        """Whether a source that gives nothing is to be left alone now. Asking begins no trial."""
        entry = self._sources.get(source)
        if entry is None or not entry.silent or self._rules.retry_s is None:
            return False
        return monotonic() < entry.trial_s

    def leg(self, record: LegRecord) -> Watch:
        """See Observer.leg. A leg that pulls from a source that gives nothing is its trial."""
        pull, retry_s = record.leg.pull, self._rules.retry_s
        entry = self._sources.get(pull.source.p2p) if pull else None
        if entry is not None and entry.silent and retry_s is not None:
            entry.trial_s = monotonic() + retry_s
        return _UNWATCHED

    def pull(self, record: PullRecord) -> None:
        """See Observer.pull. Unknown pulls change nothing, nor do those that had nothing to move."""
        entry = self._entry(record.source)
        entry.pulls += 1
        entry.moved_bytes += record.moved_bytes or 0
        entry.moved_tokens += record.moved_tokens or 0
        if record.outcome in _GAVE:
            entry.in_a_row, entry.of_row = 0, {}
            if entry.silent:
                self._give_again(record.source, entry)
        elif record.outcome is _NOTHING and not record.local:
            entry.in_a_row += 1
            if self._rules.threshold and entry.in_a_row >= self._rules.threshold and not entry.silent:
                self._fall_silent(record.source, entry)

    def source(self, record: PullRecord) -> None:
        """See Observer.source. What comes after its pull's source was reported is told once, too."""
        entry = self._sources.get(record.source) or self._entry(record.source)
        says = record.source_says
        if says is None:
            return
        entry.says[says] = entry.says.get(says, 0) + 1
        if record.outcome is not _NOTHING or record.local:
            return
        was = _in_words(entry.of_row)
        entry.of_row[says] = entry.of_row.get(says, 0) + 1
        if entry.silent and was == _UNTOLD != (words := _in_words(entry.of_row)):
            logger.info("pulls from %s move nothing: %s", record.source.netloc, words)

    def _fall_silent(self, source: Endpoint, entry: Yield) -> None:
        entry.silent = True
        entry.trial_s = monotonic() + (self._rules.retry_s or 0.0)
        logger.warning(
            "%d pulls in a row from %s moved nothing (%s): %s; likely %s",
            entry.in_a_row,
            source.netloc,
            "going on" if self._rules.retry_s is None else f"one is tried every {self._rules.retry_s:g} s",
            _in_words(entry.of_row),
            CAUSES,
        )

    def _give_again(self, source: Endpoint, entry: Yield) -> None:
        entry.silent = False
        logger.info("pulls from %s move blocks again", source.netloc)

    def _entry(self, source: Endpoint) -> Yield:
        entry = self._sources.pop(source, None)
        if entry is None:
            entry = Yield()
            if len(self._sources) >= MAX_SOURCES:
                del self._sources[next(iter(self._sources))]
        self._sources[source] = entry
        return entry


def _in_words(said: Mapping[Says, int]) -> str:
    """What a source's own counters say of the pulls that moved nothing: where to look first."""
    if said.get(Says.GAVE):
        return "by its own counters it gave blocks meanwhile, so the fault lies between it and this engine"
    if said.get(Says.NOTHING):
        return "by its own counters nothing left it, so it found none of the blocks or refused to be asked"
    return _UNTOLD
