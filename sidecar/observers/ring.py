"""Remembers the last exchanges on routed paths, with their legs and what became of their pulls: the ring.

Rule: it keeps what the log line tells and the moments of each leg: no header values but the request id, no
query, no body. A pull is settled later than its exchange, and its source says still later what it gave: its
entry is completed then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from sidecar.evidence import Outcome
from sidecar.observers import ExchangeRecord, LegRecord, Observer, PullRecord, Watch
from sidecar.observers.log import line

# What became of the pull of an exchange, besides the outcomes of one that was directed or skipped: none was
# named, or it is not settled yet.
NONE, PENDING = "none", "pending"
OUTCOMES = (*map(str, Outcome), PENDING, NONE)

_UNWATCHED: Watch = nullcontext()
_Key = tuple[str, float]


@dataclass(slots=True)
class _Entry:
    """One exchange. version: of the ring when it last changed.

    pending: dictionaries of pulls that are not settled, or of which their sources have said nothing yet.
    """

    version: int
    told: dict[str, Any]
    pending: dict[_Key, dict[str, Any]] = field(default_factory=dict)


class Ring(Observer):
    """The last `most` exchanges, the newest last. version: rises with every change."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: deque[_Entry] = deque()
        self._unsettled: dict[_Key, _Entry] = {}
        self._number = 0
        self.version = 0

    def exchange(self, record: ExchangeRecord) -> Watch:
        """See Observer.exchange."""
        return _UNWATCHED if record.api is None else self._kept(record)

    def pull(self, record: PullRecord) -> None:
        """See Observer.pull. One that is told before its exchange is over is read from the leg then."""
        key = _key(record)
        entry = self._unsettled.get(key)
        if entry is None:
            return
        entry.pending[key].update(_settled(record))
        entry.told["outcome"] = [leg["pull"]["outcome"] for leg in entry.told["legs"] if "pull" in leg][-1]
        self.version += 1
        entry.version = self.version
        if record.source_says is not None:  # nothing more will be known
            del entry.pending[key], self._unsettled[key]

    def source(self, record: PullRecord) -> None:
        """See Observer.source. What is known before `pull` is told there."""
        if record.outcome is not None:
            self.pull(record)

    def since(self, version: int = 0) -> list[dict[str, Any]]:
        """The exchanges that are new or have changed since the ring had that version, the oldest first."""
        return [entry.told for entry in self._entries if entry.version > version]

    def of(self, outcomes: Iterable[str]) -> list[dict[str, Any]]:
        """The exchanges with these outcomes, the newest first."""
        wanted = frozenset(outcomes)
        return [entry.told for entry in reversed(self._entries) if entry.told["outcome"] in wanted]

    @contextmanager
    def _kept(self, record: ExchangeRecord) -> Iterator[None]:
        try:
            yield
        finally:
            self._keep(record)

    def _keep(self, record: ExchangeRecord) -> None:
        self._number += 1
        self.version += 1
        if len(self._entries) >= self._most:
            for key in self._entries.popleft().pending:
                del self._unsettled[key]
        told = {"number": self._number, "at": _began(record), "outcome": _outcome(record), **line(record)}
        told["prefiller"] = _prefiller(record)
        entry = _Entry(self.version, told)
        for leg, fields in zip(record.legs, told["legs"], strict=True):
            fields |= _moments(record, leg)
            if leg.pull is not None:
                fields["pull"] |= _settled(leg.pull)
                if leg.pull.outcome is None or leg.pull.source_says is None:
                    entry.pending[_key(leg.pull)] = fields["pull"]
                    self._unsettled[_key(leg.pull)] = entry
        self._entries.append(entry)


def _key(pull: PullRecord) -> _Key:
    """A pull that was directed twice, by two legs of one request, has one id."""
    return pull.kv_request_id, pull.started_s


def _began(record: ExchangeRecord) -> str:
    """The time of day at which the request's head was read."""
    ago = timedelta(seconds=monotonic() - record.started_s)
    return (datetime.now(UTC) - ago).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _outcome(record: ExchangeRecord) -> str:
    pulls = [leg for leg in record.legs if leg.leg.pull]
    if pulls:
        last = pulls[-1].pull
        return PENDING if last is None or last.outcome is None else str(last.outcome)
    return str(Outcome.SKIPPED) if record.route and record.route.no_pull else NONE


def _prefiller(record: ExchangeRecord) -> str | None:
    """The one that the request named, whether or not it was asked."""
    prefiller = record.route.prefiller if record.route else None
    return prefiller.endpoint.netloc if prefiller else None


def _moments(record: ExchangeRecord, leg: LegRecord) -> dict[str, Any]:
    """When the leg's answer began, in milliseconds since the request's head was read."""
    return {
        "head_ms": _ms(record.started_s, leg.head_s),
        "first_byte_ms": _ms(record.started_s, leg.first_byte_s),
    }


def _settled(pull: PullRecord) -> dict[str, Any]:
    """What is known of a pull. Figures that cannot be attributed are null, never zero."""
    return {
        "outcome": PENDING if pull.outcome is None else str(pull.outcome),
        "moved_bytes": pull.moved_bytes,
        "moved_tokens": pull.moved_tokens,
        "prompt_tokens": pull.prompt_tokens,
        "cached_tokens": pull.cached_tokens,
        "avoided_prefill_estimate_ms": None if pull.saved_s is None else _ms(0.0, pull.saved_s),
        "engine_had_it": pull.local,
        "source_says": None if pull.source_says is None else str(pull.source_says),
    }


def _ms(start_s: float, end_s: float | None) -> float | None:
    return None if end_s is None else round((end_s - start_s) * 1000, 3)
