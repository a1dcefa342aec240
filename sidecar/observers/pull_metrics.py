"""Counts pulls by what became of them, once that is known.

Rule: from the record of a pull alone. Tokens and bytes are what certainly moved: what cannot be
attributed to a pull is not counted.
"""

from __future__ import annotations

from sidecar.evidence import Outcome
from sidecar.observers import Observer, PullRecord
from sidecar.observers.board import Row
from sidecar.observers.families import (
    LOCAL,
    PULLED_BYTES,
    PULLED_TOKENS,
    PULLS,
    SECONDS_AVOIDED,
    SOURCE_SAYS,
)
from sidecar.observers.peers import PEER_BYTES, PEER_PULLS, PEER_TOKENS, PeerRow

_CELLS = {outcome: PULLS.cell(outcome) for (outcome,) in PULLS.series}
_SAYS_CELLS = {says: SOURCE_SAYS.cell(says) for (says,) in SOURCE_SAYS.series}
_PEER_CELLS = {outcome: PEER_PULLS.cell(outcome) for (outcome,) in PEER_PULLS.series}


class PullMetrics(Observer):
    """Writes to this process's own rows. peers: None without `--metrics-peers`."""

    def __init__(self, row: Row, peers: PeerRow | None = None) -> None:
        self._row = row
        self._peers = peers

    def pull(self, record: PullRecord) -> None:
        """See Observer.pull."""
        outcome = LOCAL if record.local else str(record.outcome or Outcome.UNKNOWN)
        moved_tokens, moved_bytes = record.moved_tokens or 0, record.moved_bytes or 0
        row = self._row
        row[_CELLS[outcome]] += 1
        row[PULLED_TOKENS.first] += moved_tokens
        row[PULLED_BYTES.first] += moved_bytes
        row[SECONDS_AVOIDED.first] += record.saved_s or 0.0
        if self._peers is not None:
            cells = self._peers.cells(record.source.netloc)
            cells[_PEER_CELLS[outcome]] += 1
            cells[PEER_TOKENS.first] += moved_tokens
            cells[PEER_BYTES.first] += moved_bytes

    def source(self, record: PullRecord) -> None:
        """See Observer.source."""
        if record.source_says is not None:
            self._row[_SAYS_CELLS[record.source_says]] += 1
