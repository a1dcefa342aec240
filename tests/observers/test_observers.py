"""Several observers as one."""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType

import pytest

from sidecar.observers import ExchangeRecord, LegRecord, Observer, Observers, OfPulls, Watch
from sidecar.plan import Pull, Role
from sidecar.routing import Route
from tests.observers.play import DECODER, SOURCE, chat, leg


class Told(Observer):
    """Writes down when its watch is entered and left, and with what."""

    def __init__(self, name: str, events: list[str], fault: str | None = None) -> None:
        self.name, self.events, self.fault = name, events, fault

    def exchange(self, record: ExchangeRecord) -> Watch:
        return _Watch(self)

    def leg(self, record: LegRecord) -> Watch:
        return _Watch(self)


class _Watch:
    def __init__(self, told: Told) -> None:
        self._told = told

    def __enter__(self) -> None:
        self._told.events.append(f"{self._told.name} in")
        if self._told.fault == "in":
            raise LookupError(self._told.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._told.events.append(f"{self._told.name} out {kind.__name__ if kind else None}")
        if self._told.fault == "out":
            raise LookupError(self._told.name)


def watched(*faults: str | None, error: Exception | None = None) -> list[str]:
    """What observers a, b, c are told of one exchange; faults: where each fails itself."""
    events: list[str] = []
    observers = [Told(name, events, fault) for name, fault in zip("abc", faults, strict=False)]
    with Observers(observers).exchange(chat(Route(DECODER))):
        events.append("inside")
        if error:
            raise error
    return events


def test_observers_are_entered_in_order_and_left_in_reverse() -> None:
    assert watched() == ["inside"]
    assert watched(None) == ["a in", "inside", "a out None"]
    assert watched(None, None, None) == [
        *("a in", "b in", "c in", "inside", "c out None", "b out None", "a out None")
    ]


def test_all_are_told_of_the_error_that_passes() -> None:
    events: list[str] = []
    observers = Observers([Told(name, events) for name in "ab"])
    with pytest.raises(KeyError), observers.exchange(chat(Route(DECODER))):
        raise KeyError
    assert events == ["a in", "b in", "b out KeyError", "a out KeyError"]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("in", ["a in", "b in", "a out LookupError"]),
        ("out", ["a in", "b in", "b out LookupError", "a out LookupError"]),
    ],
)
def test_one_that_fails_itself_does_not_keep_the_others_from_leaving(fault: str, told: list[str]) -> None:
    events: list[str] = []
    observers = Observers([Told("a", events), Told("b", events, fault)])
    with pytest.raises(LookupError, match="b"), observers.exchange(chat(Route(DECODER))):
        events.append("inside")
    assert [event.replace("b out None", "b out LookupError") for event in events if event != "inside"] == told


def test_observers_of_pulls_are_not_entered_for_other_legs() -> None:
    events: list[str] = []
    observers = Observers([OfPulls([Told(name, events) for name in "ab"]), Told("c", events)])
    record = leg(chat(Route(DECODER)), Role.DECODE, 1.0)
    with observers.leg(record):
        pass
    assert events == ["c in", "c out None"]
    record.leg = replace(record.leg, pull=Pull(SOURCE, "k"))
    events.clear()
    with observers.leg(record):
        pass
    assert events == [f"{name} in" for name in "abc"] + [f"{name} out None" for name in "cba"]
