"""The seam for whoever watches: tracing, metrics, pull verification and the log line are observers.

Rule: an observer is three context managers, entered around an exchange, around a leg with its attempts, and
around the one function that sends it. It may read the records and add headers to an attempt; it never
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TypeVar

from sidecar.observers.records import Attempt, ExchangeRecord, LegRecord

__all__ = ["Attempt", "ExchangeRecord", "LegRecord", "Observer", "Observers", "Watch"]

Watch = AbstractContextManager[None]
_R = TypeVar("_R")


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


class Observers:
    """All observers as one: each method enters those that override it and leaves them in reverse."""

    __slots__ = ("attempt", "exchange", "leg")

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.exchange: Callable[[ExchangeRecord], Watch] = _together(
            [o.exchange for o in observers if type(o).exchange is not Observer.exchange]
        )
        self.leg: Callable[[LegRecord], Watch] = _together(
            [o.leg for o in observers if type(o).leg is not Observer.leg]
        )
        self.attempt: Callable[[Attempt], Watch] = _together(
            [o.attempt for o in observers if type(o).attempt is not Observer.attempt]
        )


def _together(watchers: Sequence[Callable[[_R], Watch]]) -> Callable[[_R], Watch]:
    """One watcher out of many; none and one, the usual numbers, cost no stack."""
    if not watchers:
        nothing: Watch = nullcontext()
        return lambda record: nothing
    if len(watchers) == 1:
        return watchers[0]
    return lambda record: _Stack([watcher(record) for watcher in watchers])


class _Stack:
    """Enters its watchers when it is entered itself, so that one that fails unwinds those before it.

    Each sees what the one inside it raised. (An ExitStack costs four times as much.)
    """

    __slots__ = ("_watchers",)

    def __init__(self, watchers: list[Watch]) -> None:
        self._watchers = watchers

    def __enter__(self) -> None:
        watchers = self._watchers
        for count, watcher in enumerate(watchers):
            try:
                watcher.__enter__()
            except BaseException as error:
                _leave(watchers[:count], error)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _leave(self._watchers, error)


def _leave(watchers: list[Watch], error: BaseException | None) -> None:
    """Leave watchers in reverse. Raises what one of them raised, the last of them."""
    inside = error
    for watcher in reversed(watchers):
        try:
            if inside is None:
                watcher.__exit__(None, None, None)
            else:
                watcher.__exit__(type(inside), inside, inside.__traceback__)
        except BaseException as raised:
            inside = raised
    if inside is not None and inside is not error:
        raise inside
