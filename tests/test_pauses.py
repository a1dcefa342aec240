"""Engines whose pulls are suspended: pauses that grow, one trial at a time, and what counts as one."""

from __future__ import annotations

import pytest

from sidecar import pauses
from sidecar.endpoint import Endpoint
from sidecar.observers import ExchangeRecord, LegRecord
from sidecar.pauses import Pauses
from sidecar.plan import Leg, Role

ENGINE, OTHER = Endpoint("localhost", 8200), Endpoint("10.0.0.3", 8000)


class Clock:
    """now_s: what it shows."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pauses, "monotonic", clock)
    return clock


def table() -> Pauses:
    return Pauses(10.0, first_s=30.0, longest_s=100.0)


def leg(clock: Clock, engine: Endpoint = ENGINE) -> LegRecord:
    """One that is sent now, of an exchange of its own."""
    exchange = ExchangeRecord(method="POST", path="/", request_headers=(), api=None, started_s=clock.now_s)
    sent = Leg(Role.DECODE, engine, b"POST", b"/", (), b"")
    return LegRecord(exchange=exchange, leg=sent, started_s=clock.now_s)


def tried(engines: Pauses, clock: Clock) -> LegRecord:
    """The trial that is due now."""
    record = leg(clock)
    assert engines.admits(ENGINE, record.exchange)
    return record


def refused(record: LegRecord, status: int = 400) -> LegRecord:
    record.status, record.first_byte_s = status, record.started_s
    return record


def test_pauses_grow_from_one_trial_that_hangs_to_the_next(clock: Clock) -> None:
    engines = table()
    assert not engines.suspended(ENGINE)
    assert engines.begin(leg(clock))
    assert (engines.suspended(ENGINE), engines.suspended(OTHER)) == (True, False)
    for length_s in (30.0, 60.0, 100.0, 100.0):
        clock.now_s += length_s - 0.1
        assert engines.suspended(ENGINE)
        clock.now_s += 0.2
        assert not engines.suspended(ENGINE)
        trial = tried(engines, clock)
        clock.now_s += 10.0
        assert not engines.begin(trial)


def test_asking_begins_no_trial_and_a_leg_that_is_sent_does(clock: Clock) -> None:
    engines = table()
    engines.begin(leg(clock))
    clock.now_s += 31.0
    assert [engines.suspended(ENGINE) for _ in range(3)] == [False, False, False]
    assert [engines.admits(ENGINE, leg(clock).exchange) for _ in range(2)] == [True, False]
    assert engines.suspended(ENGINE)


def test_a_trial_that_nobody_judges_keeps_others_off_for_twice_the_wait(clock: Clock) -> None:
    engines = table()
    engines.begin(leg(clock))
    clock.now_s += 31.0
    first = tried(engines, clock)
    clock.now_s += 19.9
    assert engines.suspended(ENGINE)
    clock.now_s += 0.2
    tried(engines, clock)
    engines.ended(refused(first))
    assert engines.suspended(ENGINE)  # the second one's trial is not the first one's to give back


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_a_trial_that_the_engine_refuses_is_the_next_ones(clock: Clock, status: int) -> None:
    engines = table()
    engines.begin(leg(clock))
    clock.now_s += 31.0
    engines.ended(refused(tried(engines, clock), status))
    assert engines.admits(ENGINE, leg(clock).exchange)
    assert engines.suspended(ENGINE)  # the pause is not over


def test_a_trial_without_a_byte_is_the_next_ones_when_it_would_have_been_late(clock: Clock) -> None:
    engines = table()
    engines.begin(leg(clock))
    clock.now_s += 31.0
    trial = tried(engines, clock)
    trial.status = 200  # a stream's head comes before its pull
    clock.now_s += 4.0
    engines.ended(trial)
    assert engines.suspended(ENGINE)
    clock.now_s += 6.1
    tried(engines, clock)


@pytest.mark.parametrize("status", [200, 201])
def test_an_answer_to_a_trial_ends_the_pause(clock: Clock, status: int) -> None:
    engines = table()
    engines.begin(leg(clock))
    clock.now_s += 31.0
    engines.ended(refused(tried(engines, clock), status))
    assert [engines.admits(ENGINE, leg(clock).exchange) for _ in range(2)] == [True, True]
    assert engines.begin(leg(clock))  # as the first time


def test_legs_sent_before_a_pause_neither_end_nor_lengthen_it(clock: Clock) -> None:
    engines = table()
    answered, *hung = (leg(clock) for _ in range(4))
    clock.now_s += 10.0
    assert [engines.begin(record) for record in hung] == [True, False, False]
    engines.ended(refused(answered, 200))
    assert engines.suspended(ENGINE)
    clock.now_s += 30.1
    assert not engines.suspended(ENGINE)


def test_the_table_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "MAX_ENGINES", 2)
    engines, named = table(), [Endpoint("10.0.0.1", port) for port in (1, 2, 3)]
    for engine in named:
        engines.begin(leg(clock, engine))
    assert [engines.suspended(engine) for engine in named] == [False, True, True]
