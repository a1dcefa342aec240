"""The seam for whoever watches: tracing, metrics, pull verification and the log line are observers.

Rule: an observer is three context managers, entered around an exchange, around a leg with its attempts, and
around the one function that sends it; and it is told of each pull. It may read the records and add headers to
an attempt; it never decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TypeVar

from sidecar.observers.records import Attempt, ExchangeRecord, LegRecord, PullRecord

__all__ = [
    "Attempt",
    "ExchangeRecord",
    "LegRecord",
    "Observer",
    "Observers",
    "OfPulls",
    "PullRecord",
    "Watch",
]

Watch = AbstractContextManager[None]
_R = TypeVar("_R")
_NOTHING: Watch = nullcontext()


class Observer:
    """Base of every observer: override what you watch; exceptions that pass through must be let go on."""

    def exchange(self, record: ExchangeRecord) -> Watch:
        """Entered when the request's head is read, left when its answer has ended, however it ended."""
        return nullcontext()

    def leg(self, record: LegRecord) -> Watch:
        """Entered before a leg's first attempt, left when its answer has been read or relayed."""
        return nullcontext()

    def attempt(self, record: Attempt) -> Watch:
        """Entered before a leg's request is sent, left when that answer has ended."""
        return nullcontext()

    def pull(self, record: PullRecord) -> None:
        """Called once for each pull, when it is known what it moved or that it cannot be known."""

    def source(self, record: PullRecord) -> None:
        """Called once for each pull where its source is asked, when it is known what that says of it.

        This is at most a few looks later than `pull`, and may be just before it.
        """


class OfPulls(Observer):
    """Observers of legs that pull: to every other leg they are one look at it, however many they are."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._leg = Observers(observers).leg

    def leg(self, record: LegRecord) -> Watch:
        """See Observer.leg."""
        return _NOTHING if record.leg.pull is None else self._leg(record)


class Observers:
    """All observers as one: each method enters those that override it and leaves them in reverse."""

    __slots__ = ("_observers", "attempt", "exchange", "leg")

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self.exchange: Callable[[ExchangeRecord], Watch] = _together(
            [o.exchange for o in observers if type(o).exchange is not Observer.exchange]
        )
        self.leg: Callable[[LegRecord], Watch] = _together(
            [o.leg for o in observers if type(o).leg is not Observer.leg]
        )
        self.attempt: Callable[[Attempt], Watch] = _together(
            [o.attempt for o in observers if type(o).attempt is not Observer.attempt]
        )

    def pull(self, record: PullRecord) -> None:
        """Tell every observer of a pull."""
        for observer in self._observers:
            observer.pull(record)

    def source(self, record: PullRecord) -> None:
        """Tell every observer what its source says of a pull."""
        for observer in self._observers:
            observer.source(record)


def _together(watchers: Sequence[Callable[[_R], Watch]]) -> Callable[[_R], Watch]:
    """One watcher out of many; none and one, the usual numbers, cost nothing."""
    if not watchers:
        nothing: Watch = nullcontext()
        return lambda record: nothing
    first, *rest = watchers
    if not rest:
        return first
    inside = _together(rest)
    return lambda record: _both(first(record), inside(record))


def _both(outside: Watch, inside: Watch) -> Watch:
    """Two watchers as one; who has nothing to watch is not entered."""
    if type(inside) is nullcontext:
        return outside
    return inside if type(outside) is nullcontext else _Pair(outside, inside)


class _Pair:
    """Two watchers as one. (An ExitStack does the same at six times the price, for every exchange.)"""

    __slots__ = ("_inside", "_outside")

    def __init__(self, outside: Watch, inside: Watch) -> None:
        self._outside = outside
        self._inside = inside

    def __enter__(self) -> None:
        self._outside.__enter__()
        try:
            self._inside.__enter__()
        except BaseException as error:
            self._outside.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._inside.__exit__(kind, error, trace)
        except BaseException as fault:
            self._outside.__exit__(type(fault), fault, fault.__traceback__)
            raise
        self._outside.__exit__(kind, error, trace)
