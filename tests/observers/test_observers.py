"""Observers together: the order in which they enter and leave, and what failures do to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sidecar.observers import ExchangeRecord, Observer, Observers
from tests.observers.play import chat


class Noting(Observer):
    """Notes when it is entered and left, and with what; fails where it is told to."""

    def __init__(self, name: str, notes: list[str], failing: str = "") -> None:
        self._name, self._notes, self._failing = name, notes, failing

    @contextmanager
    def exchange(self, record: ExchangeRecord) -> Iterator[None]:
        self._note("in")
        try:
            yield
        except BaseException as error:
            self._notes.append(f"{self._name} saw {error}")
            raise
        finally:
            self._note("out")

    def _note(self, what: str) -> None:
        self._notes.append(f"{self._name} {what}")
        if what == self._failing:
            raise ValueError(f"{self._name} {what}")


def test_all_are_entered_in_order_and_left_in_reverse() -> None:
    notes: list[str] = []
    with Observers([Noting("a", notes), Observer(), Noting("b", notes)]).exchange(chat(None)):
        notes.append("-")
    assert notes == ["a in", "b in", "-", "b out", "a out"]


def test_what_passes_through_is_seen_by_all_and_raised() -> None:
    notes: list[str] = []
    both = Observers([Noting("a", notes), Noting("b", notes)])
    with pytest.raises(KeyError, match="it"), both.exchange(chat(None)):
        raise KeyError("it")
    assert notes == ["a in", "b in", "b saw 'it'", "b out", "a saw 'it'", "a out"]


def test_one_that_cannot_be_entered_unwinds_those_before_it() -> None:
    notes: list[str] = []
    both = Observers([Noting("a", notes), Noting("b", notes, "in"), Noting("c", notes)])
    with pytest.raises(ValueError, match="b in"), both.exchange(chat(None)):
        notes.append("never")
    assert notes == ["a in", "b in", "a saw b in", "a out"]


def test_one_that_fails_at_the_end_is_seen_by_those_around_it() -> None:
    notes: list[str] = []
    both = Observers([Noting("a", notes), Noting("b", notes, "out")])
    with pytest.raises(ValueError, match="b out"), both.exchange(chat(None)):
        pass
    assert notes == ["a in", "b in", "b out", "a saw b out", "a out"]


def test_nobody_and_one_need_no_stack() -> None:
    notes: list[str] = []
    with Observers([]).exchange(chat(None)), Observers([Noting("a", notes)]).exchange(chat(None)):
        pass
    assert notes == ["a in", "a out"]
