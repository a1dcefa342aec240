"""Numbers of several processes in one place."""

from __future__ import annotations

import os

from sidecar.counters import UNCOUNTED, Event
from sidecar.observers.board import Board, RowCounters
from sidecar.observers.families import CELLS, EVENTS, FAMILIES, IN_FLIGHT, LEGS, WORKERS


def test_cells_do_not_overlap_and_leave_no_gap() -> None:
    taken = [cell for family in FAMILIES for cell in range(family.first, family.first + family.cells)]
    assert taken == list(range(CELLS))


def test_every_event_has_a_counter_of_its_name() -> None:
    assert {event: counter.name for event, counter in EVENTS.items()} == {
        event: str(event) for event in Event
    }


def test_gauges_of_a_process_that_has_ended_are_cleared_and_its_counts_stay() -> None:
    board = Board(2)
    for row in (0, 1):
        board.row(row)[WORKERS.first] = 1.0
        board.row(row)[IN_FLIGHT.first] = 3.0
        board.row(row)[LEGS.cell("decode", "2xx")] = 5.0
    board.clear_gauges(1)
    totals = board.totals()
    assert [totals[cell] for cell in (WORKERS.first, IN_FLIGHT.first, LEGS.cell("decode", "2xx"))] == [
        1.0,
        3.0,
        10.0,
    ]


def test_totals_are_the_sums_of_all_rows() -> None:
    board = Board(3)
    for row in range(3):
        board.row(row)[0] = 2.0**row
        board.row(row)[CELLS - 1] += 0.5
    assert (board.totals()[0], board.totals()[-1], sum(board.totals())) == (7.0, 1.5, 8.5)


def test_what_a_forked_process_counts_is_seen_here_and_stays_when_it_is_gone() -> None:
    board = Board(2)
    pid = os.fork()
    if not pid:
        RowCounters(board.row(1)).add(Event.DNS_RERESOLVED)
        os._exit(0)
    assert os.waitpid(pid, 0) == (pid, 0)
    RowCounters(board.row(0)).add(Event.DNS_RERESOLVED)
    assert board.totals()[EVENTS[Event.DNS_RERESOLVED].first] == 2.0


def test_counting_goes_nowhere_while_metrics_are_off() -> None:
    for event in Event:
        UNCOUNTED.add(event)
