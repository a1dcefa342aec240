"""What is counted of a pull once it is known what it moved."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.endpoint import Endpoint
from sidecar.evidence import Outcome
from sidecar.giving import Says
from sidecar.observers import PullRecord
from sidecar.observers.board import Board
from sidecar.observers.peers import PeerBoard
from sidecar.observers.pull_metrics import PullMetrics
from sidecar.plan import Role
from tests.observers.play import DECODER
from tests.observers.test_metrics import shown


def pulled(outcome: Outcome | None, **fields: Any) -> PullRecord:
    """A settled pull."""
    told: dict[str, Any] = {
        "source": Endpoint("10.0.0.9", 7777),
        "engine": DECODER,
        "kv_request_id": "k",
        "role": Role.DECODE,
        "request_id": "r",
        "trace_id": None,
        "started_s": 1.0,
        "outcome": outcome,
    }
    return PullRecord(**(told | fields))


@pytest.mark.parametrize("outcome", [one for one in Outcome if one is not Outcome.SKIPPED])
def test_a_pull_is_counted_by_its_outcome(outcome: Outcome) -> None:
    board = Board(1)
    PullMetrics(board.row(0)).pull(pulled(outcome))
    assert shown(board) == {f"pulls_total {outcome}": 1.0}


def test_a_pull_that_had_nothing_to_move_is_counted_apart() -> None:
    board = Board(1)
    PullMetrics(board.row(0)).pull(pulled(Outcome.NOTHING, local=True))
    assert shown(board) == {"pulls_total nothing_local": 1.0}


def test_what_certainly_moved_and_the_prefill_it_saved_are_summed() -> None:
    board = Board(1)
    metrics = PullMetrics(board.row(0))
    metrics.pull(pulled(Outcome.MOVED, moved_bytes=4096, moved_tokens=32, saved_s=0.25))
    metrics.pull(pulled(Outcome.PARTIAL, moved_bytes=1024, saved_s=None))
    assert shown(board) == {
        "pulls_total moved": 1.0,
        "pulls_total partial": 1.0,
        "pulled_tokens_total": 32.0,
        "pulled_bytes_total": 5120.0,
        "prefill_avoided_seconds_estimate_total": 0.25,
    }


def test_a_source_is_named_only_where_there_is_a_table_of_them() -> None:
    board, peers = Board(1), PeerBoard(1)
    PullMetrics(board.row(0), peers.row(0)).pull(pulled(Outcome.MOVED, moved_bytes=7, moved_tokens=5))
    found = peers.totals()
    assert list(found) == ["other", "10.0.0.9:7777"]
    assert (found["other"], sorted(found["10.0.0.9:7777"])) == ([0.0] * 8, [0.0] * 5 + [1.0, 5.0, 7.0])


@pytest.mark.parametrize("says", Says)
def test_what_a_source_says_is_counted_when_it_says_it(says: Says) -> None:
    board = Board(1)
    metrics = PullMetrics(board.row(0))
    record = pulled(Outcome.MOVED)
    metrics.pull(record)
    record.source_says = says
    metrics.source(record)
    assert shown(board) == {"pulls_total moved": 1.0, f"pulls_seen_by_source_total {says}": 1.0}
