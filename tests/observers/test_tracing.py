"""Tracing: whole span trees of played exchanges, and what crosses the wire for each attempt."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, DEFAULT_OFF

from sidecar.api import APIS
from sidecar.body import Body
from sidecar.endpoint import Endpoint
from sidecar.errors import EngineDied, EngineUnreachable, LegRefused
from sidecar.evidence import Outcome
from sidecar.giving import Says
from sidecar.observers import ExchangeRecord, LegRecord, Observers, PullRecord
from sidecar.observers.log import ExchangeLog
from sidecar.observers.spans import Setting
from sidecar.observers.tracing import Tracing
from sidecar.plan import Chunk, Pull, Reply, Role
from sidecar.routing import NoPull, Route
from sidecar.verify import Verifier
from tests.observers.play import DECODER, PREFILLER, SOURCE, Answer, Node, attempt, chat, leg, stage

SERVER = {"http.request.method": "POST", "url.scheme": "http", "url.path": "/v1/chat/completions"}
ROUTED = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "vllm",
    "llm_d.openai.api": "chat_completions",
    "llm_d.pd_proxy.connector": "nixlv2",
    "llm_d.pd_proxy.kv_connector": "nixlv2",
    "llm_d.pd_proxy.request_path": "/v1/chat/completions",
    "llm_d.pd_proxy.request_id": "r-1",
}
DECODE_ONLY = {"llm_d.pd_proxy.disaggregation_used": False, "llm_d.pd_proxy.reason": "no_prefill_header"}
DISAGGREGATED = {
    "llm_d.pd_proxy.disaggregation_used": True,
    "llm_d.pd_proxy.prefill_target": "10.0.0.7:8000",
    "llm_d.pd_proxy.prefill_candidates": 2,
}
LEG = {"llm_d.pd_proxy.connector": "nixlv2", "llm_d.pd_proxy.request_id": "r-1"}
DECODE = {
    **LEG,
    "llm_d.pd_proxy.decode.target": "localhost:8200",
    "llm_d.pd_proxy.decode.streaming": False,
    "llm_d.pd_proxy.decode.data_parallel": False,
}
PREFILL = {**LEG, "llm_d.pd_proxy.prefill_target": "10.0.0.7:8000", "llm_d.pd_proxy.prefill.async": False}
TO_DECODER = {
    "http.request.method": "POST",
    "url.path": "/v1/chat/completions",
    "server.address": "localhost",
    "server.port": 8200,
}
TO_PREFILLER = {**TO_DECODER, "server.address": "10.0.0.7", "server.port": 8000}
OK = {"http.response.status_code": 200}
PD = Route(DECODER, PREFILLER, 2)


@pytest.mark.parametrize("chosen", [True, False])
def test_a_decode_says_whether_a_header_chose_its_rank(chosen: bool) -> None:
    played = stage()
    record = chat(Route(DECODER, data_parallel=chosen))
    with played.tracing.exchange(record):
        Answer(200, 103.0).to(played, leg(record, Role.DECODE, 101.0))
    [server] = played.trees()
    assert server.inside[0].attributes["llm_d.pd_proxy.decode.data_parallel"] is chosen


def client(where: dict[str, Any], status: int = 200) -> Node:
    return Node("HTTP POST", "CLIENT", where | {"http.response.status_code": status})


def served(attributes: dict[str, Any], *inside: Node) -> Node:
    return Node("POST /v1/chat/completions", "SERVER", SERVER | ROUTED | attributes, inside=inside)


def test_a_decode_only_request_is_a_server_a_decode_and_a_client_span() -> None:
    played = stage()
    record = chat(Route(DECODER))
    with played.tracing.exchange(record):
        Answer(200, 100.26125).to(played, leg(record, Role.DECODE, 100.001))
        record.status = 200
    decode = DECODE | {"llm_d.pd_proxy.decode.duration_ms": 260.25}
    expected = served(DECODE_ONLY | OK, Node("decode", "INTERNAL", decode, inside=(client(TO_DECODER),)))
    assert played.trees() == [expected]


def test_a_pull_names_its_source_and_a_stream_is_told() -> None:
    played = stage()
    record = chat(replace(Route(DECODER), source=SOURCE, named_source=SOURCE.endpoint))
    with played.tracing.exchange(record):
        record.streaming = True
        Answer(200, 100.5).to(played, leg(record, Role.DECODE, 100.25))
        record.status = 200
    decode = DECODE | {"llm_d.pd_proxy.decode.duration_ms": 250.0, "llm_d.pd_proxy.decode.streaming": True}
    source = {"llm_d.pd_proxy.kv_cache_source": "10.0.0.9:8000"}
    node = Node("decode", "INTERNAL", decode, inside=(client(TO_DECODER),))
    assert played.trees() == [served(DECODE_ONLY | source | OK, node)]


@pytest.mark.parametrize(
    ("route", "told"),
    [
        (
            Route(DECODER, named_source=SOURCE.endpoint, no_pull=NoPull.UNREACHABLE),
            {"reason": "source_unreachable", "kv_cache_source": "10.0.0.9:8000"},
        ),
        (
            Route(DECODER, named_source=SOURCE.endpoint, no_pull=NoPull.SELF),
            {"reason": "source_is_self", "kv_cache_source": "10.0.0.9:8000"},
        ),
        (
            Route(DECODER, named_source=SOURCE.endpoint, no_pull=NoPull.NO_P2P),
            {"reason": "connector_without_p2p"},
        ),
        (Route(DECODER, no_pull=NoPull.MALFORMED), {"reason": "source_malformed"}),
    ],
)
def test_the_server_span_says_why_a_named_source_is_not_pulled_from(
    route: Route, told: dict[str, str]
) -> None:
    played = stage()
    record = chat(route)
    with played.tracing.exchange(record):
        record.status = 200
    attributes = {f"llm_d.pd_proxy.{key}": value for key, value in told.items()}
    assert played.trees() == [served({"llm_d.pd_proxy.disaggregation_used": False} | attributes | OK)]


def test_a_handoff_is_a_prefill_and_a_decode_side_by_side_with_the_sums_on_decode() -> None:
    played = stage()
    record = chat(PD)
    with played.tracing.exchange(record):
        Answer(200, 100.05555).to(played, leg(record, Role.PREFILL, 100.0005))
        Answer(200, 100.3).to(played, leg(record, Role.DECODE, 100.056))
        record.status = 200
    prefill = PREFILL | {
        "llm_d.pd_proxy.prefill.status_code": 200,
        "llm_d.pd_proxy.prefill.duration_ms": 55.05,
    }
    decode = DECODE | {
        "llm_d.pd_proxy.decode.duration_ms": 244.0,
        "llm_d.pd_proxy.decode.concurrent_with_prefill": False,
        "llm_d.pd_proxy.concurrent_pd": False,
        "llm_d.pd_proxy.true_ttft_ms": 56.0,
        "llm_d.pd_proxy.prefill_duration_ms": 55.05,
        "llm_d.pd_proxy.decode_duration_ms": 244.0,
        "llm_d.pd_proxy.coordinator_overhead_ms": 0.45,
        "llm_d.pd_proxy.total_duration_ms": 300.0,
    }
    expected = served(
        DISAGGREGATED | OK,
        Node("prefill", "INTERNAL", prefill, inside=(client(TO_PREFILLER),)),
        Node("decode", "INTERNAL", decode, inside=(client(TO_DECODER),)),
    )
    assert played.trees() == [expected]


def test_a_request_that_is_not_handed_over_says_why_and_is_none_of_disaggregation() -> None:
    played = stage()
    record = chat(replace(PD, no_pull=NoPull.SEVERAL_PROMPTS))
    with played.tracing.exchange(record):
        record.alone = "several_prompts"
        Answer(200, 100.3).to(played, leg(record, Role.DECODE, 100.1))
        record.status = 200
    [tree] = played.trees()
    told = DISAGGREGATED | OK | {"llm_d.pd_proxy.disaggregation_used": False}
    assert tree.attributes == SERVER | ROUTED | told | {"llm_d.pd_proxy.reason": "several_prompts"}
    assert tree.inside[0].attributes["llm_d.pd_proxy.reason"] == "several_prompts"


def chunk_of(record: ExchangeRecord, index: int, started_s: float) -> LegRecord:
    """The exchange's next leg, a chunk of 8 tokens."""
    chunk = leg(record, Role.DECODE, started_s)
    chunk.leg = replace(chunk.leg, chunk=Chunk(index, 8))
    return chunk


def chunked(status: tuple[str, str | None], told: dict[str, Any], *inside: Node) -> Node:
    named = {f"llm_d.pd_proxy.chunked_decode.{key}": value for key, value in told.items()}
    return Node("chunked_decode", "INTERNAL", LEG | named, status, inside)


def test_the_chunks_of_a_decode_are_one_span_around_the_client_spans_of_all() -> None:
    played = stage()
    record = chat(Route(DECODER))
    with played.tracing.exchange(record):
        record.streaming = True
        for index in range(3):
            Answer(200, 100.5 + index).to(played, chunk_of(record, index, 100.25 + index))
        record.status, record.completion_tokens, record.ended_s = 200, 21, 103.0
    told = {"chunk_size": 8, "streaming": True, "chunks": 3, "total_tokens": 21, "duration_ms": 2250.0}
    expected = chunked(("UNSET", None), told, *[client(TO_DECODER)] * 3)
    assert played.trees() == [served(DECODE_ONLY | OK | {"gen_ai.usage.output_tokens": 21}, expected)]
    names = [span.name for span in played.exported.get_finished_spans()]
    assert names == ["HTTP POST"] * 3 + ["chunked_decode", "POST /v1/chat/completions"]


def test_a_chunk_that_is_sent_again_is_one_chunk_and_its_pull_lies_in_the_span() -> None:
    played = stage()
    record = chat(Route(DECODER, source=SOURCE))
    with played.tracing.exchange(record):
        carrying, pull = pulling(record)
        carrying.leg = replace(carrying.leg, chunk=Chunk(0, 8))
        Answer(200, 100.5).to(played, carrying)
        Answer(200, 101.0).to(played, chunk_of(record, 0, 100.5))
    pull.outcome = Outcome.RESCUED
    played.tracing.pull(pull)
    [span] = played.trees()[0].inside
    assert span.attributes["llm_d.pd_proxy.chunked_decode.chunks"] == 1
    assert sorted(node.name for node in span.inside) == ["HTTP POST", "HTTP POST", "pull"]


@pytest.mark.parametrize(
    ("status", "label", "kind"),
    [(429, "engine_refused", "429"), (200, "engine_died", "engine_died")],
)
def test_a_chunk_that_fails_is_the_failure_of_the_whole(status: int, label: str, kind: str) -> None:
    played = stage()
    record = chat(Route(DECODER))
    with played.tracing.exchange(record):
        Answer(200, 100.5).to(played, chunk_of(record, 0, 100.0))
        Answer(status, 101.0).to(played, chunk_of(record, 1, 100.5))
        record.error = label
    told = {"chunk_size": 8, "streaming": False, "chunks": 2, "duration_ms": 1000.0}
    [span] = played.trees()[0].inside
    failed = chunked(("ERROR", "chunked decode request failed"), told, *span.inside)
    assert span == replace(failed, attributes=failed.attributes | {"error.type": kind})


def test_a_refusal_that_only_ends_the_text_is_no_failure_of_the_whole() -> None:
    played = stage()
    record = chat(Route(DECODER))
    with played.tracing.exchange(record):
        Answer(200, 100.5).to(played, chunk_of(record, 0, 100.0))
        Answer(400, 101.0).to(played, chunk_of(record, 1, 100.5))
        record.status = 200
    assert played.trees()[0].inside[0].status == ("UNSET", None)


def test_a_client_that_leaves_cancels_the_chunked_decode() -> None:
    played = stage()
    record = chat(Route(DECODER), error="client_gone")
    watch = played.tracing.exchange(record)
    watch.__enter__()
    Answer(200, 100.5).to(played, chunk_of(record, 0, 100.0))
    watch.__exit__(asyncio.CancelledError, asyncio.CancelledError(), None)
    [span] = played.trees()[0].inside
    assert (span.name, span.status) == ("chunked_decode", ("ERROR", "cancelled"))


def test_a_decode_in_the_stead_of_a_chunk_has_the_failure_and_its_own_span() -> None:
    played = stage()
    record = chat(Route(DECODER))
    with played.tracing.exchange(record):
        Answer(200, 100.5).to(played, chunk_of(record, 0, 100.0))
        Answer(500, 101.0).to(played, leg(record, Role.DECODE, 100.5))
        record.error = "engine_refused"
    inside = played.trees()[0].inside
    assert [(node.name, node.status[0]) for node in inside] == [
        ("chunked_decode", "UNSET"),
        ("decode", "ERROR"),
    ]


def test_a_lost_handoff_gives_its_reason_on_decode_and_server() -> None:
    played = stage()
    record = chat(PD)
    with played.tracing.exchange(record):
        Answer(200, 100.1).to(played, leg(record, Role.PREFILL, 100.0))
        record.handoff_lost = "prefill_without_kv_transfer_params"
        Answer(200, 100.3).to(played, leg(record, Role.DECODE, 100.1))
    [tree] = played.trees()
    for node in (tree, tree.inside[1]):
        assert node.attributes["llm_d.pd_proxy.reason"] == "prefill_without_kv_transfer_params"
    assert tree.attributes["llm_d.pd_proxy.disaggregation_used"] is True


def test_legs_that_run_together_say_so_and_have_no_overhead_between_them() -> None:
    played = stage()
    record = chat(PD)
    with played.tracing.exchange(record):
        prefill, decode = leg(record, Role.PREFILL, 100.0), leg(record, Role.DECODE, 100.01)
        prefill.started = True
        Answer(200, 100.2).to(played, prefill)
        Answer(200, 100.3).to(played, decode)
    first, second = (node.attributes for node in played.trees()[0].inside)
    assert first["llm_d.pd_proxy.prefill.async"] is True
    assert second["llm_d.pd_proxy.decode.concurrent_with_prefill"] is True
    assert second["llm_d.pd_proxy.concurrent_pd"] is True
    assert "llm_d.pd_proxy.coordinator_overhead_ms" not in second


def test_legs_that_meet_in_a_room_tell_it_and_a_held_answer_is_a_parallel_dispatch() -> None:
    played = stage()
    record = chat(PD, held=True)
    with played.tracing.exchange(record):
        for role in (Role.PREFILL, Role.DECODE):
            met = leg(record, role, 100.0)
            met.leg = replace(met.leg, room=1 << 62)
            Answer(200, 100.2).to(played, met)
    [tree] = played.trees()
    assert tree.attributes["llm_d.pd_proxy.parallel_dispatch"] is True
    for node in tree.inside:
        assert node.attributes["llm_d.pd_proxy.bootstrap_room"] == 1 << 62
        assert node.attributes["llm_d.pd_proxy.parallel_dispatch"] is True


@pytest.mark.parametrize("allowed", [0, 2])
def test_a_request_that_names_encoders_tells_how_many_are_used(allowed: int) -> None:
    played = stage(ec_connector="ec-nixl")
    encoders = (Endpoint("10.0.0.4", 8000), Endpoint("10.0.0.5", 8000))[:allowed]
    with played.tracing.exchange(chat(replace(PD, encoders=encoders, encoder_candidates=3))):
        pass
    [tree] = played.trees()
    assert {key: value for key, value in tree.attributes.items() if "ec_" in key} == {
        "llm_d.pd_proxy.ec_connector": "ec-nixl",
        "llm_d.ec_proxy.encode_disaggregation_used": allowed > 0,
        "llm_d.ec_proxy.encoder_count": allowed,
        "llm_d.ec_proxy.encoder_candidates": 3,
    }


def pulling(record: ExchangeRecord) -> tuple[LegRecord, PullRecord]:
    """The exchange's decode leg, which pulls."""
    carrying = leg(record, Role.DECODE, 100.0)
    pull = carrying.pull = PullRecord(
        source=SOURCE.p2p,
        engine=DECODER,
        kv_request_id="k",
        role=Role.DECODE,
        request_id="r-1",
        trace_id=None,
        started_s=100.0,
    )
    return carrying, pull


PULL = {
    "sidecar.pull.source": "10.0.0.9",
    "sidecar.pull.p2p_port": 7777,
    "sidecar.pull.guard": "off",
    "sidecar.pull.kv_request_id": "k",
    "sidecar.pull.engine": "localhost:8200",
    "sidecar.pull.local": False,
}


def test_a_pull_is_a_span_under_its_leg_when_it_is_settled_after_all_else_has_ended() -> None:
    played = stage(guarded=True)
    record = chat(Route(DECODER, source=SOURCE))
    with played.tracing.exchange(record):
        carrying, pull = pulling(record)
        Answer(200, 100.9).to(played, carrying)
    assert [node.name for node in played.trees()[0].inside[0].inside] == ["HTTP POST"]
    pull.outcome, pull.moved_bytes, pull.moved_tokens, pull.saved_s = Outcome.MOVED, 4096, 64, 0.16
    pull.prompt_tokens, pull.cached_tokens, pull.first_byte_s = 70, 64, 100.25
    pull.source_says = Says.CONFIRMED
    played.tracing.source(pull)
    played.tracing.pull(pull)
    told = {
        **PULL,
        "sidecar.pull.guard": "admitted",
        "sidecar.pull.outcome": "moved",
        "sidecar.pull.source_says": "confirmed",
        "sidecar.pull.moved_bytes": 4096,
        "sidecar.pull.moved_tokens": 64,
        "sidecar.pull.prompt_tokens": 70,
        "sidecar.pull.cached_tokens": 64,
        "sidecar.pull.ttft_ms": 250.0,
        "sidecar.pull.avoided_prefill_estimate_ms": 160.0,
    }
    inside = {node.name: node for node in played.trees()[0].inside[0].inside}
    assert inside["pull"] == Node("pull", "INTERNAL", told)
    span = next(span for span in played.exported.get_finished_spans() if span.name == "pull")
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == pytest.approx(250e6, abs=1e3)


@pytest.mark.parametrize(
    ("outcome", "local", "status"),
    [
        (Outcome.NOTHING, False, ("ERROR", "no blocks moved")),
        (Outcome.NOTHING, True, ("UNSET", None)),
        (Outcome.UNKNOWN, False, ("UNSET", None)),
    ],
)
def test_what_is_not_known_of_a_pull_is_left_out(
    outcome: Outcome, status: tuple[str, str | None], *, local: bool
) -> None:
    played = stage()
    record = chat(Route(DECODER, source=SOURCE))
    with played.tracing.exchange(record):
        carrying, pull = pulling(record)
        Answer(200, 100.9).to(played, carrying)
    pull.outcome, pull.local = outcome, local
    played.tracing.pull(pull)
    inside = {node.name: node for node in played.trees()[0].inside[0].inside}
    told = {**PULL, "sidecar.pull.outcome": str(outcome), "sidecar.pull.local": local}
    assert inside["pull"] == Node("pull", "INTERNAL", told, status)


def test_a_pull_that_the_verifier_begins_with_the_leg_lies_under_it() -> None:
    played = stage()
    told: list[PullRecord] = []
    verifier = Verifier(None, told.append, DECODER, interval_s=1.0, sole=True)
    together = Observers([verifier, played.tracing])
    record = chat(Route(DECODER, source=SOURCE))
    with together.exchange(record):
        carrying = leg(record, Role.DECODE, 100.0)
        carrying.leg = replace(carrying.leg, pull=Pull(SOURCE, "k"))
        with together.leg(carrying):
            carrying.ended_s = 100.9
    played.tracing.pull(told[0])
    [server] = played.trees()
    assert [(node.name, [inner.name for inner in node.inside]) for node in server.inside] == [
        ("decode", ["pull"])
    ]


def test_a_pull_of_a_request_that_is_not_sampled_has_no_span() -> None:
    played = stage(ALWAYS_OFF)
    record = chat(Route(DECODER, source=SOURCE))
    with played.tracing.exchange(record):
        carrying, pull = pulling(record)
        Answer(200, 100.9).to(played, carrying)
    played.tracing.pull(pull)
    assert played.trees() == []


def test_a_refused_prefill_is_an_error_of_its_leg_and_not_of_a_server_that_answers_4xx() -> None:
    played = stage()
    record = chat(PD)
    with played.tracing.exchange(record):
        prefilled = leg(record, Role.PREFILL, 100.0)
        answer = Answer(400, 100.02, raised=LegRefused(prefilled.leg, Reply(400, b"", (), b"", Body({}))))
        with pytest.raises(LegRefused):
            answer.to(played, prefilled)
        record.status, record.error = 400, "refused"
    prefill = PREFILL | {
        "llm_d.pd_proxy.prefill.status_code": 400,
        "llm_d.pd_proxy.prefill.duration_ms": 20.0,
        "error.type": "refused",
    }
    called = client(TO_PREFILLER | {"error.type": "400"}, 400)
    expected = served(
        DISAGGREGATED | {"http.response.status_code": 400, "llm_d.pd_proxy.error": "refused"},
        Node(
            "prefill",
            "INTERNAL",
            prefill,
            ("ERROR", "prefill request failed"),
            (replace(called, status=("ERROR", None)),),
        ),
    )
    assert played.trees() == [expected]


def test_each_retry_is_a_client_span_of_its_own_and_a_leg_that_recovers_is_no_error() -> None:
    played = stage()
    record = chat(PD)
    with played.tracing.exchange(record):
        prefill = leg(record, Role.PREFILL, 100.0)
        with played.tracing.leg(prefill):
            first = attempt(prefill)
            first.error = prefill.error = "unreachable"
            with pytest.raises(EngineUnreachable), played.tracing.attempt(first):
                raise EngineUnreachable(prefill.leg, "")
            second = attempt(prefill)
            with played.tracing.attempt(second):
                second.status = prefill.status = 200
            prefill.ended_s = 100.5
    again = TO_PREFILLER | {"http.request.resend_count": 1}
    [node] = played.trees()[0].inside
    assert node.status == ("UNSET", None)
    assert node.inside == (
        Node("HTTP POST", "CLIENT", TO_PREFILLER | {"error.type": "unreachable"}, ("ERROR", "unreachable")),
        client(again),
    )
    assert len({dict(tried.headers)[b"traceparent"] for tried in (first, second)}) == 2


def test_a_client_that_goes_away_leaves_no_span_unset() -> None:
    played = stage()
    record = chat(Route(DECODER))
    decode = leg(record, Role.DECODE, 100.0)
    tried = attempt(decode)
    tried.status = decode.status = record.status = 200
    decode.ended_s = 100.75
    tried.error = decode.error = "cancelled"
    record.error = "client_gone"
    with (
        pytest.raises(asyncio.CancelledError),
        played.tracing.exchange(record),
        played.tracing.leg(decode),
        played.tracing.attempt(tried),
    ):
        raise asyncio.CancelledError
    gone = {"error.type": "client_gone", "llm_d.pd_proxy.error": "client_gone"}
    cancelled = {"error.type": "cancelled"}
    called = Node("HTTP POST", "CLIENT", TO_DECODER | OK | cancelled, ("ERROR", "cancelled"))
    duration = {"llm_d.pd_proxy.decode.duration_ms": 750.0}
    inner = Node("decode", "INTERNAL", DECODE | duration | cancelled, ("ERROR", "cancelled"), (called,))
    expected = replace(served(DECODE_ONLY | OK | gone, inner), status=("ERROR", "client gone"))
    assert played.trees() == [expected]


def test_an_exchange_cancelled_before_anything_was_known_is_an_error_too() -> None:
    played = stage()
    record = chat(None, request_id="")
    with pytest.raises(asyncio.CancelledError), played.tracing.exchange(record):
        raise asyncio.CancelledError
    attributes = {key: value for key, value in ROUTED.items() if not key.endswith("request_id")}
    expected = Node(
        "POST /v1/chat/completions",
        "SERVER",
        SERVER | attributes | {"error.type": "client_gone"},
        ("ERROR", "client gone"),
    )
    assert played.trees() == [expected]


@pytest.mark.parametrize(
    ("status", "error", "kind", "expected"),
    [
        (200, None, None, ("UNSET", None)),
        (400, "BadRequestError", None, ("UNSET", None)),
        (404, None, None, ("UNSET", None)),
        (500, None, "500", ("ERROR", None)),
        (503, "unreachable", "unreachable", ("ERROR", None)),
        (200, "died", "died", ("ERROR", "died")),
        (None, "InternalServerError", "InternalServerError", ("ERROR", "InternalServerError")),
    ],
)
def test_the_status_of_a_server_span_follows_the_http_conventions(
    status: int | None, error: str | None, kind: str | None, expected: tuple[str, str | None]
) -> None:
    played = stage()
    record = chat(Route(DECODER))
    with played.tracing.exchange(record):
        record.status, record.error = status, error
    [node] = played.trees()
    assert node.status == expected
    assert node.attributes.get("error.type") == kind
    assert node.attributes.get("llm_d.pd_proxy.error") == error


def test_a_decode_leg_fails_with_its_status_or_with_its_label() -> None:
    played = stage()
    record = chat(Route(DECODER))
    with played.tracing.exchange(record):
        Answer(429, 100.1).to(played, leg(record, Role.DECODE, 100.0))
        cut = leg(record, Role.DECODE, 100.2)
        with pytest.raises(EngineDied), played.tracing.leg(cut):
            raise EngineDied(cut.leg, "")
        odd = leg(record, Role.DECODE, 100.3)
        with pytest.raises(ZeroDivisionError), played.tracing.leg(odd):
            raise ZeroDivisionError
    found = [(node.attributes["error.type"], node.status) for node in played.trees()[0].inside]
    failed = ("ERROR", "decode request failed")
    assert found == [("429", failed), ("died", failed), ("ZeroDivisionError", failed)]


def test_a_passed_through_request_has_no_stages() -> None:
    played = stage(scheme="https", own=Endpoint("10.0.0.1", 8000))
    record = chat(Route(DECODER), method="GET", path="/v1/models", api=None, request_id="")
    with played.tracing.exchange(record):
        Answer(200, 100.1).to(played, leg(record, Role.DECODE, 100.0))
        record.status = 200
    get = {"http.request.method": "GET", "url.path": "/v1/models"}
    here = {"url.scheme": "https", "server.address": "10.0.0.1", "server.port": 8000}
    called = Node("HTTP GET", "CLIENT", TO_DECODER | get | OK)
    assert played.trees() == [Node("GET /v1/models", "SERVER", get | here | OK, inside=(called,))]


@pytest.mark.parametrize(
    ("method", "path", "routed", "name"),
    [
        ("POST", "//v1/chat/completions/", True, "POST /v1/chat/completions"),
        ("GET", "/v1/chat/completions", False, "GET /v1/chat/completions"),
        ("GET", "/v1/responses/resp_68a1", False, "forward_request"),
        ("PROPFIND", "/v1/models", False, "HTTP /v1/models"),
        ("GET", "/\xff", False, "forward_request"),
    ],
)
def test_server_spans_have_few_names(method: str, path: str, *, routed: bool, name: str) -> None:
    played = stage()
    with played.tracing.exchange(chat(None, method=method, path=path, api=APIS[0] if routed else None)):
        pass
    [node] = played.trees()
    assert node.name == name
    assert node.attributes["url.path"] == path


def test_an_unknown_method_is_told_as_other_on_both_sides() -> None:
    played = stage()
    record = chat(Route(DECODER), method="PROPFIND", path="/x", api=None)
    with played.tracing.exchange(record):
        Answer(405, 100.1).to(played, leg(record, Role.DECODE, 100.0))
    [node] = played.trees()
    assert node.inside[0].name == "HTTP"
    for told in (node.attributes, node.inside[0].attributes):
        assert told["http.request.method"] == "_OTHER"
        assert told["http.request.method_original"] == "PROPFIND"


PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_every_attempt_carries_its_own_client_span_and_the_parents_state() -> None:
    played = stage()
    own = ((b"TraceParent", PARENT), (b"tracestate", b"a=1,b=2"), (b"baggage", b"k=v"), (b"X-Mine", b"1"))
    record = chat(Route(DECODER), *own)
    answer = Answer(200, 100.1)
    with played.tracing.exchange(record):
        answer.to(played, leg(record, Role.DECODE, 100.0, own))
    server = next(span for span in played.exported.get_finished_spans() if span.kind.name == "SERVER")
    called = next(span for span in played.exported.get_finished_spans() if span.kind.name == "CLIENT")
    assert server.parent is not None
    assert server.parent.span_id == 0xB7AD6B7169203331
    assert server.parent.is_remote
    assert called.context is not None
    assert called.context.trace_state.to_header() == "a=1,b=2"
    assert answer.sent == [
        (b"Host", b"localhost:8200"),
        (b"tracestate", b"a=1,b=2"),
        (b"baggage", b"k=v"),
        (b"X-Mine", b"1"),
        (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-%016x-01" % called.context.span_id),
    ]
    assert record.trace_id == "0af7651916cd43dd8448eb211c80319c"


def test_a_doubled_parent_starts_a_new_trace_and_its_state_stays_behind() -> None:
    played = stage()
    own = (
        (b"traceparent", PARENT),
        (b"Traceparent", PARENT),
        (b"TraceState", b"a=1"),
        (b"baggage", b"k=v"),
        (b"baggage", b"not valid at all"),
    )
    record = chat(Route(DECODER), *own)
    answer = Answer(200, 100.1)
    with played.tracing.exchange(record):
        answer.to(played, leg(record, Role.DECODE, 100.0, own))
    called = next(span for span in played.exported.get_finished_spans() if span.kind.name == "CLIENT")
    assert called.context is not None
    assert called.context.trace_id != 0x0AF7651916CD43DD8448EB211C80319C
    assert answer.sent == [
        (b"Host", b"localhost:8200"),
        (b"baggage", b"k=v"),
        (b"baggage", b"not valid at all"),
        (b"traceparent", b"00-%032x-%016x-01" % (called.context.trace_id, called.context.span_id)),
    ]


def test_the_random_flag_goes_on_when_it_came_in() -> None:
    played = stage()
    answer = Answer(200, 100.1)
    record = chat(Route(DECODER), (b"traceparent", PARENT[:-2] + b"03"))
    with played.tracing.exchange(record):
        answer.to(played, leg(record, Role.DECODE, 100.0))
    assert dict(answer.sent)[b"traceparent"].endswith(b"-03")


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, DEFAULT_OFF])
def test_an_unsampled_request_records_nothing_and_still_carries_its_trace_on(sampler: Any) -> None:
    played = stage(sampler)
    own = ((b"traceparent", PARENT[:-2] + b"00"), (b"tracestate", b"a=1"))
    record = chat(PD, *own)
    prefill, decode = Answer(200, 100.1), Answer(200, 100.3)
    with played.tracing.exchange(record):
        prefill.to(played, leg(record, Role.PREFILL, 100.0, own))
        decode.to(played, leg(record, Role.DECODE, 100.2, own))
    assert played.trees() == []
    sent = [dict(answer.sent) for answer in (prefill, decode)]
    assert [headers[b"tracestate"] for headers in sent] == [b"a=1", b"a=1"]
    parts = [headers[b"traceparent"].split(b"-") for headers in sent]
    assert [(trace, flags) for _, trace, _, flags in parts] == [(PARENT.split(b"-")[1], b"00")] * 2
    assert len({span for _, _, span, _ in parts} | {PARENT.split(b"-")[2]}) == 3
    assert record.trace_id == "0af7651916cd43dd8448eb211c80319c"


def test_a_clock_that_is_set_back_meanwhile_makes_no_span_end_before_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = itertools.count(int(1e18), -int(3600e9))  # an hour back at each look
    monkeypatch.setattr(time, "time_ns", lambda: next(moments))
    played = stage()
    record = chat(Route(DECODER))
    with played.tracing.exchange(record):
        Answer(200, 103.0).to(played, leg(record, Role.DECODE, 101.0))
    spans = played.exported.get_finished_spans()
    assert len(spans) == 3
    for span in spans:
        assert span.start_time is not None
        assert span.end_time is not None
        assert 0 <= span.end_time - span.start_time < 10e9


def test_a_disabled_sdk_leaves_headers_and_records_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    played = stage()
    own = ((b"traceparent", PARENT), (b"traceparent", b"bad"), (b"tracestate", b"a=1"))
    record = chat(Route(DECODER), *own)
    answer = Answer(200, 100.1)
    with played.tracing.exchange(record):
        answer.to(played, leg(record, Role.DECODE, 100.0, own))
    assert answer.sent == [(b"Host", b"localhost:8200"), *own]
    assert record.trace_id is None
    assert played.trees() == []


def test_nothing_stays_behind_when_exchanges_end() -> None:
    played = stage()
    for _ in range(3):
        record = chat(Route(DECODER))
        with played.tracing.exchange(record):
            Answer(200, 100.1).to(played, leg(record, Role.DECODE, 100.0))
    assert played.tracing._traces == {}
    assert played.tracing._legs == {}


def test_exchanges_that_run_at_once_keep_their_own_trees() -> None:
    played = stage()

    async def run(request_id: str) -> None:
        record = chat(Route(DECODER), request_id=request_id)
        decode = leg(record, Role.DECODE, 100.0)
        tried = attempt(decode)
        with played.tracing.exchange(record):
            await asyncio.sleep(0)
            with played.tracing.leg(decode):
                await asyncio.sleep(0)
                with played.tracing.attempt(tried):
                    await asyncio.sleep(0)

    async def run_all() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(run(str(number)))

    asyncio.run(run_all())
    shape = [
        (tree.attributes["llm_d.pd_proxy.request_id"], [node.attributes["llm_d.pd_proxy.request_id"]])
        for tree in played.trees()
        for node in tree.inside
    ]
    assert shape == [(str(number), [str(number)]) for number in range(5)]


def test_the_log_line_entered_first_reads_the_trace_id(caplog: pytest.LogCaptureFixture) -> None:
    played = stage()
    record = chat(Route(DECODER), (b"traceparent", PARENT))
    caplog.set_level(logging.INFO, "sidecar.exchange")
    with Observers([ExchangeLog(), played.tracing]).exchange(record):
        pass
    [logged] = caplog.records
    fields: dict[str, Any] = logged.__dict__["fields"]
    assert fields["trace_id"] == "0af7651916cd43dd8448eb211c80319c"


class Stuck(SpanExporter):
    """An exporter whose collector never answers."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.released.wait(10)
        return SpanExportResult.FAILURE


def test_shutdown_gives_up_on_a_collector_that_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Stuck()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracing = Tracing(provider, Setting("nixlv2"))
    with tracing.exchange(chat(None)):
        pass
    tracing.shutdown(0.05)
    exporter.released.set()
    expected = "the last spans could not be exported within 0.05 s and are lost"
    assert [line.getMessage() for line in caplog.records] == [expected]


def test_limits_from_the_environment_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "2")
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "3")
    played = stage()
    with played.tracing.exchange(chat(None)):
        pass
    [server] = played.exported.get_finished_spans()
    attributes = dict(server.attributes or {})
    assert len(attributes) == 2
    assert all(len(str(value)) <= 3 for value in attributes.values())
    assert server.dropped_attributes > 0
