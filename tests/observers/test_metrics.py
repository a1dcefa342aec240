"""What is counted of an exchange, and when (contract section 10; the cases are those of the peer)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.observers import ExchangeRecord
from sidecar.observers.board import Board
from sidecar.observers.families import FAMILIES, PREFIX
from sidecar.observers.kinds import Histogram
from sidecar.observers.metrics import Metrics
from sidecar.plan import Chunk, Role
from sidecar.routing import NoPull, Route
from tests.observers.play import DECODER, PREFILLER, chat, leg

SPLIT = Route(DECODER, prefiller=PREFILLER, prefill_candidates=1)
ASKED = {"requests_total chat_completions": 1.0}


# What is told of exchanges besides how many there were and how their stages went.
MEASURES = ("legs_total", "overhead_", "request_body", "answer_body", "time_to_first", "stream_write")


def counted(record: ExchangeRecord, error: BaseException | None = None) -> dict[str, float]:
    """The peer's numbers, and ours that count exchanges, once the exchange is over."""
    numbers = all_of(record, error)
    return {name: number for name, number in numbers.items() if not name.startswith(MEASURES)}


def measured(record: ExchangeRecord) -> dict[str, float]:
    """The others."""
    return {name: number for name, number in all_of(record).items() if name.startswith(MEASURES)}


def all_of(record: ExchangeRecord, error: BaseException | None = None) -> dict[str, float]:
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
        if isinstance(family, Histogram):
            numbers[f"{name} count"] = sum(totals[family.first : family.sum_cell])
            numbers[f"{name} sum"] = totals[family.sum_cell]
        else:
            numbers |= {" ".join((name, *values)): totals[family.cell(*values)] for values in family.series}
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


@pytest.mark.parametrize(("error", "errors"), [(None, {}), ("refused", {"request_errors_total decode": 1.0})])
def test_a_chunk_whose_refusal_ends_the_text_is_no_error_and_any_other_is(
    error: str | None, errors: dict[str, float]
) -> None:
    record = chat(Route(DECODER), error=error)
    for index, status in enumerate((200, 400)):
        begin_s = 101.0 + index
        ran(record, Role.DECODE, begin_s, begin_s + 1.0, status, None if status == 200 else "refused")
        last = record.legs[-1]
        last.leg = replace(last.leg, chunk=Chunk(index, 8))
    assert counted(record) == ASKED | stage("decode", 2.0) | errors


@pytest.mark.parametrize(("encoded", "split"), [(False, {}), (True, {"disagg_requests_total e/pd": 1.0})])
def test_a_request_that_is_decoded_alone_is_no_p_d(split: dict[str, float], *, encoded: bool) -> None:
    record = chat(SPLIT, alone="several_prompts")
    if encoded:
        ran(record, Role.ENCODE, 100.0, 101.0)
    ran(record, Role.DECODE, 101.0, 103.0)
    numbers = {name: number for name, number in counted(record).items() if "encode" not in name}
    assert numbers == ASKED | stage("decode", 2.0) | split


def rescued(record: ExchangeRecord, role: Role, begin_s: float, end_s: float) -> None:
    """The exchange's next leg, which hung in its pull and was given up."""
    ran(record, role, begin_s, end_s, None, "cancelled")
    record.legs[-1].rescued = True


def test_a_decode_that_was_given_up_and_sent_again_is_no_error() -> None:
    record = chat(Route(DECODER))
    rescued(record, Role.DECODE, 101.0, 111.0)
    ran(record, Role.DECODE, 111.0, 112.0)
    assert counted(record) == ASKED | stage("decode", 11.0)


def test_a_prefill_that_was_given_up_and_sent_again_is_no_error_and_no_fallback() -> None:
    record = chat(SPLIT)
    rescued(record, Role.PREFILL, 101.0, 111.0)
    ran(record, Role.PREFILL, 111.0, 112.0)
    ran(record, Role.DECODE, 112.0, 113.0)
    assert counted(record) == ASKED | P_D | stage("prefill", 11.0) | stage("decode", 1.0)


def test_a_decode_that_fails_once_more_without_its_pull_is_an_error() -> None:
    record = chat(Route(DECODER))
    rescued(record, Role.DECODE, 101.0, 111.0)
    ran(record, Role.DECODE, 111.0, 112.0, 500)
    assert counted(record) == ASKED | stage("decode", 11.0) | failed("decode")


def test_a_decode_that_was_given_up_as_its_client_left_is_an_error() -> None:
    record = chat(Route(DECODER), error="client_gone")
    rescued(record, Role.DECODE, 101.0, 111.0)
    assert counted(record) == ASKED | stage("decode", 10.0) | failed("decode")


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


def leg_of(role: str, status: str) -> dict[str, float]:
    """One leg."""
    return {f"legs_total {role} {status}": 1.0}


def sampled(name: str, amount: float) -> dict[str, float]:
    """One sample of a measure."""
    return {f"{name} count": 1.0} | ({f"{name} sum": amount} if amount else {})


def test_a_streamed_answer_gives_its_first_byte_and_the_mean_time_between_its_writes() -> None:
    record = chat(
        Route(DECODER),
        status=200,
        streaming=True,
        first_byte_s=100.5,
        writes=11,
        sent_bytes=900,
        request_bytes=70,
    )
    ran(record, Role.DECODE, 100.25, 199.5)
    assert measured(record) == (
        leg_of("decode", "2xx")
        | sampled("time_to_first_token_seconds", 0.5)
        | sampled("stream_write_interval_mean_seconds", (200.0 - 100.5) / 10)
        | sampled("overhead_seconds", 0.75)
        | sampled("request_body_bytes", 70)
        | sampled("answer_body_bytes", 900)
    )


TTFT, INTERVAL, OVERHEAD = (
    f"{name}_seconds count" for name in ("time_to_first_token", "stream_write_interval_mean", "overhead")
)


@pytest.mark.parametrize(
    ("fields", "absent"),
    [
        ({"streaming": False, "writes": 9}, {TTFT, INTERVAL}),
        ({"streaming": True, "writes": 1}, {INTERVAL}),
        ({"streaming": True, "writes": 9, "status": 500}, {TTFT}),
        ({"streaming": True, "writes": 9, "error": "died"}, {TTFT, OVERHEAD}),
    ],
)
def test_an_answer_that_shows_no_such_time_is_no_sample_of_it(
    fields: dict[str, object], absent: set[str]
) -> None:
    record = chat(Route(DECODER), **({"status": 200, "first_byte_s": 100.5} | fields))
    ran(record, Role.DECODE, 100.25, 199.5)
    assert absent.isdisjoint(measured(record))


def test_overhead_is_what_no_leg_covers_before_between_and_after_them() -> None:
    record = chat(SPLIT)
    ran(record, Role.PREFILL, 100.5, 110.0)
    ran(record, Role.DECODE, 110.25, 198.0)
    assert measured(record) == (
        leg_of("prefill", "2xx")
        | leg_of("decode", "2xx")
        | sampled("overhead_seconds", 0.5 + 0.25 + 2.0)
        | sampled("request_body_bytes", 0)
        | sampled("answer_body_bytes", 0)
    )


def test_legs_side_by_side_are_no_overhead() -> None:
    record = chat(SPLIT)
    ran(record, Role.PREFILL, 100.5, 150.0)
    ran(record, Role.DECODE, 100.5, 200.0)
    assert measured(record)["overhead_seconds sum"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("status", "error", "shown"),
    [
        (200, None, "2xx"),
        (404, None, "4xx"),
        (503, "refused", "5xx"),
        (302, None, "3xx"),
        (799, None, "other"),
        (200, "died", "cut"),
        (None, "died", "none"),
        (None, "unreachable", "none"),
        (200, "unusable", "2xx"),
        (200, "cancelled", "cancelled"),
        (None, "cancelled", "cancelled"),
    ],
)
def test_a_leg_is_counted_by_its_role_and_how_it_ended(
    status: int | None, error: str | None, shown: str
) -> None:
    record = chat(Route(DECODER), error=error)
    ran(record, Role.ENCODE, 101.0, 102.0, status, error)
    assert all_of(record)[f"legs_total encode {shown}"] == 1.0


def test_a_leg_that_outlives_its_exchange_has_not_failed() -> None:
    record = chat(SPLIT)
    running = leg(record, Role.PREFILL, 101.0)
    running.started = True
    ran(record, Role.DECODE, 101.0, 110.0)
    numbers = all_of(record)
    assert numbers["legs_total prefill running"] == 1.0
    assert "request_errors_total prefill" not in numbers


def test_a_source_that_is_not_pulled_from_is_counted_by_its_reason() -> None:
    record = chat(Route(DECODER, no_pull=NoPull.UNREACHABLE))
    ran(record, Role.DECODE, 101.0, 103.5)
    assert counted(record) == ASKED | stage("decode", 2.5) | {"pulls_skipped_total source_unreachable": 1.0}


def test_requests_are_in_flight_until_they_are_left_however_they_end() -> None:
    board, record = Board(1), chat(Route(DECODER))
    metrics = Metrics(board.row(0))
    one, other = metrics.exchange(record), metrics.exchange(record)
    one.__enter__()
    other.__enter__()
    assert shown(board)["requests_in_flight"] == 2.0
    one.__exit__(None, None, None)
    other.__exit__(ValueError, ValueError(), None)
    assert "requests_in_flight" not in shown(board)
