"""What is counted of an exchange, and when (contract section 10; the cases are those of the peer)."""

from __future__ import annotations

import pytest

from sidecar.observers import ExchangeRecord
from sidecar.observers.board import Board
from sidecar.observers.families import FAMILIES, Counter
from sidecar.observers.metrics import Metrics
from sidecar.plan import Role
from sidecar.routing import Route
from tests.observers.play import DECODER, PREFILLER, chat, leg

SPLIT = Route(DECODER, prefiller=PREFILLER, prefill_candidates=1)
PREFIX = "llm_d_disagg_sidecar_"
ASKED = {"requests_total chat_completions": 1.0}


def counted(record: ExchangeRecord, error: BaseException | None = None) -> dict[str, float]:
    """Every number that is not zero once the exchange is over; histograms as their count and their sum."""
    board = Board(1)
    watch = Metrics(board.row(0)).exchange(record)
    watch.__enter__()
    record.ended_s = 200.0
    watch.__exit__(type(error) if error else None, error, None)
    return shown(board)


def shown(board: Board) -> dict[str, float]:
    """The board's numbers that are not zero, by name without the prefix."""
    totals, numbers = board.totals(), dict[str, float]()
    for family in FAMILIES:
        name = family.name.removeprefix(PREFIX)
        if isinstance(family, Counter):
            numbers |= {f"{name} {value}".strip(): totals[family.cell(value)] for value in family.values}
        else:
            numbers[f"{name} count"] = sum(totals[family.first : family.sum_cell])
            numbers[f"{name} sum"] = totals[family.sum_cell]
    return {name: number for name, number in numbers.items() if number}


def ran(
    record: ExchangeRecord,
    role: Role,
    begin_s: float,
    end_s: float,
    status: int | None = 200,
    error: str | None = None,
) -> None:
    """The exchange's next leg, from its start to its end."""
    one = leg(record, role, begin_s)
    one.ended_s, one.status, one.error = end_s, status, error


def stage(name: str, seconds: float) -> dict[str, float]:
    """One sample of a stage."""
    return {f"{name}_duration_seconds count": 1.0, f"{name}_duration_seconds sum": seconds}


def failed(name: str) -> dict[str, float]:
    """One error of a stage."""
    return {f"request_errors_total {name}": 1.0}


P_D = {"disagg_requests_total p/d": 1.0}


def test_a_plain_decode_is_one_request_and_one_sample() -> None:
    record = chat(Route(DECODER))
    ran(record, Role.DECODE, 101.0, 103.5)
    assert counted(record) == ASKED | stage("decode", 2.5)


def test_a_handoff_is_one_sample_of_each_stage() -> None:
    record = chat(SPLIT)
    ran(record, Role.PREFILL, 101.0, 103.0)
    ran(record, Role.DECODE, 103.0, 110.0)
    assert counted(record) == ASKED | P_D | stage("prefill", 2.0) | stage("decode", 7.0)


@pytest.mark.parametrize(
    ("status", "error"), [(500, "refused"), (None, "unreachable"), (200, "unusable"), (None, "died")]
)
def test_a_failed_prefill_is_a_sample_and_an_error_and_no_decode(status: int | None, error: str) -> None:
    record = chat(SPLIT, error=error)
    ran(record, Role.PREFILL, 101.0, 103.0, status, error)
    assert counted(record) == ASKED | P_D | stage("prefill", 2.0) | failed("prefill")


@pytest.mark.parametrize(
    ("status", "error"), [(500, None), (400, None), (200, "died"), (200, "cancelled"), (None, "unreachable")]
)
def test_a_decode_that_fails_or_is_cut_off_is_a_sample_and_an_error(
    status: int | None, error: str | None
) -> None:
    record = chat(SPLIT, error=error)
    ran(record, Role.PREFILL, 101.0, 103.0)
    ran(record, Role.DECODE, 103.0, 104.0, status, error)
    assert counted(record) == (ASKED | P_D | stage("prefill", 2.0) | stage("decode", 1.0) | failed("decode"))


def test_a_decode_alone_that_fails_is_a_sample_and_an_error() -> None:
    record = chat(Route(DECODER))
    ran(record, Role.DECODE, 101.0, 102.0, 503)
    assert counted(record) == ASKED | stage("decode", 1.0) | failed("decode")


def test_a_decode_cut_off_by_the_failing_prefill_beside_it_is_not_the_decoders() -> None:
    record = chat(SPLIT, error="refused")
    ran(record, Role.PREFILL, 101.0, 103.0, 500, "refused")
    ran(record, Role.DECODE, 101.0, 103.0, None, "cancelled")
    assert counted(record) == ASKED | P_D | stage("prefill", 2.0) | failed("prefill")


def test_a_client_that_leaves_cuts_off_both_stages() -> None:
    record = chat(SPLIT, error="client_gone")
    ran(record, Role.PREFILL, 101.0, 103.0, None, "cancelled")
    ran(record, Role.DECODE, 101.0, 103.0, 200, "cancelled")
    assert counted(record, error=TimeoutError()) == (
        ASKED | P_D | stage("prefill", 2.0) | stage("decode", 2.0) | failed("prefill") | failed("decode")
    )


def test_a_decode_first_attempt_that_says_it_is_none_is_not_counted() -> None:
    record = chat(SPLIT)
    ran(record, Role.DECODE, 101.0, 102.0, 200)
    record.legs[0].refused = True
    ran(record, Role.PREFILL, 102.0, 104.0)
    ran(record, Role.DECODE, 104.0, 109.0)
    assert counted(record) == ASKED | P_D | stage("prefill", 2.0) | stage("decode", 5.0)


def test_a_decode_in_chunks_is_one_sample_from_the_first_to_the_last() -> None:
    record = chat(Route(DECODER))
    for second in (101.0, 102.0, 103.0):
        ran(record, Role.DECODE, second, second + 0.75)
    assert counted(record) == ASKED | stage("decode", 2.75)


def test_a_chunk_that_fails_is_one_sample_and_one_error() -> None:
    record = chat(Route(DECODER))
    ran(record, Role.DECODE, 101.0, 102.0)
    ran(record, Role.DECODE, 102.0, 103.0, 500)
    assert counted(record) == ASKED | stage("decode", 2.0) | failed("decode")


def test_a_request_that_is_refused_before_any_leg_is_only_a_request() -> None:
    assert counted(chat(SPLIT, error="BadRequestError", status=400)) == ASKED


def test_what_is_not_routed_is_not_counted() -> None:
    record = chat(Route(DECODER), api=None, path="/v1/models")
    ran(record, Role.DECODE, 101.0, 102.0)
    assert counted(record) == {}


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        ("prefill_without_kv_transfer_params", "prefill_without_kv_transfer_params"),
        ("prefill_with_incomplete_kv_transfer_params", "prefill_with_incomplete_kv_transfer_params"),
        ("a_reason_of_tomorrow", "other"),
    ],
)
def test_a_lost_handoff_is_counted_by_reason(lost: str, reason: str) -> None:
    record = chat(SPLIT, handoff_lost=lost)
    ran(record, Role.PREFILL, 101.0, 103.0)
    ran(record, Role.DECODE, 103.0, 110.0)
    assert counted(record)[f"prefill_handoffs_lost_total {reason}"] == 1.0


def test_a_decode_that_stands_in_for_a_failed_prefill_is_a_fallback() -> None:
    record = chat(SPLIT)
    ran(record, Role.PREFILL, 101.0, 103.0, None, "unreachable")
    ran(record, Role.DECODE, 103.0, 110.0)
    assert counted(record) == (
        ASKED
        | P_D
        | stage("prefill", 2.0)
        | failed("prefill")
        | stage("decode", 7.0)
        | {"prefill_fallbacks_total": 1.0}
    )


def test_a_prefill_that_fails_after_the_decode_began_is_no_fallback() -> None:
    record = chat(SPLIT)
    ran(record, Role.PREFILL, 101.0, 104.0, 500, "refused")
    ran(record, Role.DECODE, 101.0, 103.0)
    assert "prefill_fallbacks_total" not in counted(record)


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, 0), (0.005, 0), (0.0051, 1), (1.0, 8), (3600.0, 34), (3600.1, 35)]
)
def test_a_duration_is_in_the_first_bucket_that_holds_it(seconds: float, bucket: int) -> None:
    record, board = chat(Route(DECODER), started_s=0.0), Board(1)
    ran(record, Role.DECODE, 0.0, seconds)
    record.ended_s = seconds
    with Metrics(board.row(0)).exchange(record):
        pass
    decode = next(family for family in FAMILIES if family.name == f"{PREFIX}decode_duration_seconds")
    counts = board.totals()[decode.first : decode.first + decode.cells - 1]
    assert [place for place, count in enumerate(counts) if count] == [bucket]
