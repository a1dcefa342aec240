"""What metrics cost a request: the least of many short runs, so that a busy machine does not matter."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from sidecar.observers import ExchangeRecord
from sidecar.observers.board import Board
from sidecar.observers.metrics import Metrics
from sidecar.plan import Role
from sidecar.routing import Route
from tests.observers.play import DECODER, chat, leg

# A few microseconds of the 120 to 200 that a small request takes (README, "Speed"); 2.3 (2.9 when
# streamed) were measured, and the bound leaves room for a slow machine.
BOUND_S = 12e-6
RUNS, REPEATS = 200, 200


def streamed() -> ExchangeRecord:
    """The dearest of the usual exchanges: a streamed answer, which has every measure."""
    record = chat(Route(DECODER), status=200, streaming=True, first_byte_s=100.2, ended_s=101.0, writes=64)
    record.sent_bytes, record.request_bytes = 12_000, 400
    one = leg(record, Role.DECODE, 100.0001)
    one.status, one.ended_s = 200, 101.0
    return record


def least_s(once: Callable[[], None]) -> float:
    """Seconds of one call, the least of all runs."""
    found = []
    for _ in range(REPEATS):
        began_s = perf_counter()
        for _ in range(RUNS):
            once()
        found.append((perf_counter() - began_s) / RUNS)
    return min(found)


def test_counting_an_exchange_takes_microseconds() -> None:
    metrics, record = Metrics(Board(1).row(0)), streamed()

    def once() -> None:
        with metrics.exchange(record):
            pass

    assert least_s(once) < BOUND_S
