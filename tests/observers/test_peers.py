"""The bounded table of sources."""

from __future__ import annotations

import os

from sidecar.observers.families import OTHER
from sidecar.observers.peers import MAX_PEERS, PeerBoard, PeerRow


def test_a_source_keeps_its_numbers_and_what_comes_after_the_table_is_full_is_other() -> None:
    board = PeerBoard(1)
    row = board.row(0)
    for number in range(MAX_PEERS + 3):
        row.cells(f"10.0.{number // 256}.{number % 256}:7777")[0] += 1
    row.cells("10.0.0.0:7777")[0] += 1
    found = board.totals()
    assert len(found) == MAX_PEERS + 1
    assert (found["10.0.0.0:7777"][0], found[OTHER][0]) == (2.0, 3.0)


def test_names_that_are_too_long_or_not_plain_are_other() -> None:
    board = PeerBoard(1)
    for name in ("h" * 265, "hé:1", "", "a\0b:1"):
        board.row(0).cells(name)[1] += 1
    assert {name: numbers[1] for name, numbers in board.totals().items()} == {OTHER: 4.0}


def test_the_longest_name_fits_and_names_do_not_run_into_each_other() -> None:
    board = PeerBoard(2)
    for name in ("h" * 264, "short:1"):
        board.row(0).cells(name)[0] += 1
    assert set(board.totals()) == {OTHER, "h" * 264, "short:1"}


def test_processes_are_summed_by_name_and_one_that_restarts_goes_on() -> None:
    board = PeerBoard(2)
    board.row(0).cells("b:1")[0] += 1
    for expected in (1.0, 2.0):
        pid = os.fork()
        if not pid:
            again: PeerRow = board.row(1)
            again.cells("a:1")[0] += 1
            again.cells("b:1")[0] += 1
            os._exit(0)
        assert os.waitpid(pid, 0) == (pid, 0)
        found = board.totals()
        assert (found["a:1"][0], found["b:1"][0]) == (expected, 1.0 + expected)
