"""Sources whose pulls move nothing: reported once, left alone but for trials, and taken back."""

from __future__ import annotations

import asyncio
import logging

import pytest

from sidecar import yields
from sidecar.endpoint import Endpoint
from sidecar.evidence import Outcome
from sidecar.giving import Says
from sidecar.observers import ExchangeRecord, LegRecord, PullRecord
from sidecar.plan import Leg, Peer, Pull, Role
from sidecar.yields import YieldRules, Yields

A, B = Endpoint("10.0.0.2", 7777), Endpoint("10.0.0.3", 7777)
NOTHING, MOVED, UNKNOWN = Outcome.NOTHING, Outcome.MOVED, Outcome.UNKNOWN


def pull(outcome: Outcome, source: Endpoint = A, *, local: bool = False, moved_bytes: int = 0) -> PullRecord:
    return PullRecord(
        source=source,
        engine=Endpoint("localhost", 8200),
        kv_request_id="k",
        role=Role.DECODE,
        request_id="r",
        trace_id=None,
        started_s=0.0,
        outcome=outcome,
        local=local,
        moved_bytes=moved_bytes,
    )


def leg(source: Endpoint | None) -> LegRecord:
    """A leg that is sent now, and pulls from there."""
    exchange = ExchangeRecord(method="POST", path="/", request_headers=(), api=None, started_s=0.0)
    pulling = Pull(Peer(source.with_port(8000), source.port), "k") if source else None
    sent = Leg(Role.DECODE, Endpoint("localhost", 8200), b"POST", b"/", (), b"", pulling)
    return LegRecord(exchange=exchange, leg=sent, started_s=0.0)


def told(table: Yields, *outcomes: Outcome) -> None:
    for outcome in outcomes:
        table.pull(pull(outcome))


def test_a_source_is_left_alone_once_so_many_pulls_in_a_row_moved_nothing() -> None:
    table = Yields(YieldRules(3, 60.0))
    told(table, NOTHING, NOTHING)
    assert not table.suspended(A)
    told(table, NOTHING)
    assert table.suspended(A)
    assert not table.suspended(B)


@pytest.mark.parametrize("between", [MOVED, Outcome.PARTIAL])
def test_a_pull_that_moved_something_starts_the_row_anew(between: Outcome) -> None:
    table = Yields(YieldRules(3, 60.0))
    told(table, NOTHING, NOTHING, between, NOTHING, NOTHING)
    assert not table.suspended(A)


def test_what_cannot_be_known_and_what_was_local_says_nothing_about_the_source() -> None:
    table = Yields(YieldRules(3, 60.0))
    told(table, NOTHING, UNKNOWN, NOTHING)
    for _ in range(5):
        table.pull(pull(NOTHING, local=True))
    assert not table.suspended(A)
    told(table, NOTHING)
    assert table.suspended(A)


async def test_one_pull_in_a_while_is_tried_and_takes_the_source_back_when_it_moves() -> None:
    table = Yields(YieldRules(1, 0.05))
    told(table, NOTHING)
    assert table.suspended(A)
    await asyncio.sleep(0.06)
    assert [table.suspended(A), table.suspended(A)] == [False, False]
    with table.leg(leg(B)), table.leg(leg(None)):
        assert not table.suspended(A)
    with table.leg(leg(A)):
        assert (table.suspended(A), list(table.sources)) == (True, [A])
    told(table, MOVED)
    assert not table.suspended(A)


def test_a_source_is_reported_once_with_the_likely_causes(caplog: pytest.LogCaptureFixture) -> None:
    table = Yields(YieldRules(2, 60.0))
    with caplog.at_level(logging.INFO, "sidecar.pulls"):
        told(table, *[NOTHING] * 5, MOVED, NOTHING)
    warning, info = caplog.records
    assert (warning.levelname, info.levelname) == ("WARNING", "INFO")
    text = warning.getMessage()
    assert text.startswith("2 pulls in a row from 10.0.0.2:7777 moved nothing (one is tried every 60 s)")
    for cause in (
        "PYTHONHASHSEED",
        "block size",
        "tensor-parallel",
        "offload_prompt_only",
        "cache_config_info",
    ):
        assert cause in text
    assert info.getMessage() == "pulls from 10.0.0.2:7777 move blocks again"


def test_without_suspending_a_silent_source_is_only_reported(caplog: pytest.LogCaptureFixture) -> None:
    table = Yields(YieldRules(1, None))
    told(table, NOTHING, NOTHING)
    assert not table.suspended(A)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_threshold_of_zero_reports_nothing(caplog: pytest.LogCaptureFixture) -> None:
    table = Yields(YieldRules(0, 60.0))
    told(table, *[NOTHING] * 9)
    assert (table.suspended(A), caplog.records) == (False, [])


def test_the_table_sums_up_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yields, "MAX_SOURCES", 2)
    table = Yields(YieldRules(5, 60.0))
    for source in (A, B, A):
        table.pull(pull(MOVED, source, moved_bytes=64))
    assert [(at.host, entry.pulls, entry.moved_bytes) for at, entry in table.sources.items()] == [
        ("10.0.0.3", 1, 64),
        ("10.0.0.2", 2, 128),
    ]
    table.pull(pull(MOVED, Endpoint("10.0.0.4", 7777)))
    assert [at.host for at in table.sources] == ["10.0.0.2", "10.0.0.4"]


def said(table: Yields, *says: Says) -> None:
    """Pulls that moved nothing, of which their source says this in time."""
    for one in says:
        record = pull(NOTHING)
        record.source_says = one
        table.source(record)
        table.pull(record)


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ((Says.NOTHING, Says.UNKNOWN), "by its own counters nothing left it"),
        ((Says.NOTHING, Says.GAVE), "by its own counters it gave blocks meanwhile"),
        ((Says.UNKNOWN, Says.UNKNOWN), "its own counters do not tell"),
    ],
)
def test_the_report_says_whether_the_source_gave_anything(
    says: tuple[Says, ...], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = Yields(YieldRules(2, 60.0))
    said(table, *says)
    assert [words in record.getMessage() for record in caplog.records] == [True]
    assert table.sources[A].says == {one: says.count(one) for one in says}


def test_what_a_source_says_of_pulls_before_the_row_is_not_in_its_report(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = Yields(YieldRules(2, 60.0))
    said(table, Says.GAVE)
    told(table, MOVED)
    said(table, Says.NOTHING, Says.NOTHING)
    assert "nothing left it" in caplog.records[-1].getMessage()


def test_what_a_source_says_after_it_was_reported_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    table = Yields(YieldRules(2, 60.0))
    with caplog.at_level(logging.INFO, "sidecar.pulls"):
        told(table, NOTHING, NOTHING)
        for says in (Says.UNKNOWN, Says.NOTHING, Says.NOTHING):
            late = pull(NOTHING)
            late.source_says = says
            table.source(late)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert caplog.records[1].getMessage() == (
        "pulls from 10.0.0.2:7777 move nothing: by its own counters nothing left it, so it found none of the "
        "blocks or refused to be asked"
    )
