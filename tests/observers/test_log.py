"""The log line: whole lines of played exchanges."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from sidecar.observers.log import ExchangeLog, line
from sidecar.observers.records import ExchangeRecord
from sidecar.plan import Pull, Role
from sidecar.routing import NoPull, Route
from tests.observers.play import DECODER, PREFILLER, SOURCE, chat, leg

SECRETS = (
    (b"authorization", b"Bearer secret"),
    (b"x-kv-cache-source-host-port", b"10.0.0.9:8000"),
)


def handoff() -> ExchangeRecord:
    """A streamed P/D request that pulled from a source and needed two attempts."""
    record = chat(
        Route(DECODER, PREFILLER, 1, SOURCE, SOURCE.endpoint),
        *SECRETS,
        status=200,
        streaming=True,
        first_byte_s=100.1234567,
        ended_s=101.5,
        sent_bytes=4096,
        trace_id="0af7651916cd43dd8448eb211c80319c",
    )
    prefill = leg(record, Role.PREFILL, 100.001)
    prefill.leg = replace(prefill.leg, pull=Pull(SOURCE, "kv-1"))
    prefill.attempts, prefill.status, prefill.ended_s = 2, 200, 100.1
    decode = leg(record, Role.DECODE, 100.1005)
    decode.attempts, decode.status, decode.ended_s = 1, 200, 101.5
    return record


def test_the_line_tells_of_a_chats_turns() -> None:
    record = handoff()
    record.turn = "kept"
    record.legs[0].leg = replace(record.legs[0].leg, reads="engine-d")
    fields = line(record)
    assert (fields["turn"], fields["legs"][0]["reads"]) == ("kept", "engine-d")
    assert "reads" not in fields["legs"][1]


def test_the_line_of_a_handoff_with_a_pull() -> None:
    assert line(handoff()) == {
        "method": "POST",
        "path": "/v1/chat/completions",
        "api": "chat_completions",
        "status": 200,
        "request_id": "r-1",
        "duration_ms": 1500.0,
        "ttfb_ms": 123.457,
        "sent_bytes": 4096,
        "streaming": True,
        "legs": [
            {
                "role": "prefill",
                "target": "10.0.0.7:8000",
                "status": 200,
                "started_ms": 1.0,
                "duration_ms": 99.0,
                "pull": {"source": "10.0.0.9:7777", "kv_request_id": "kv-1"},
                "attempts": 2,
            },
            {
                "role": "decode",
                "target": "localhost:8200",
                "status": 200,
                "started_ms": 100.5,
                "duration_ms": 1399.5,
            },
        ],
        "source": "10.0.0.9:8000",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
    }


def test_the_line_tells_of_a_pull_that_hung_and_was_left_out() -> None:
    record = handoff()
    record.legs[0].rescued, record.legs[0].error = True, "cancelled"
    told = line(record)["legs"][0]
    assert told["pull"] == {"source": "10.0.0.9:7777", "kv_request_id": "kv-1", "outcome": "rescued"}


def test_the_line_tells_which_leg_an_engine_refused() -> None:
    record = handoff()
    record.legs[0].refused = True
    assert [one.get("refused") for one in line(record)["legs"]] == [True, None]


def test_the_line_of_a_request_that_ended_before_it_was_answered() -> None:
    record = chat(Route(DECODER, named_source=SOURCE.endpoint, no_pull=NoPull.UNREACHABLE))
    record.error = "client_gone"
    cut = leg(record, Role.DECODE, 100.25)
    cut.error = "cancelled"
    assert line(record) == {
        "method": "POST",
        "path": "/v1/chat/completions",
        "api": "chat_completions",
        "status": None,
        "request_id": "r-1",
        "duration_ms": None,
        "ttfb_ms": None,
        "sent_bytes": 0,
        "streaming": False,
        "legs": [
            {
                "role": "decode",
                "target": "localhost:8200",
                "status": None,
                "started_ms": 250.0,
                "duration_ms": None,
                "error": "cancelled",
            }
        ],
        "source": "10.0.0.9:8000",
        "reason": "source_unreachable",
        "error": "client_gone",
    }


def test_of_several_reasons_the_line_has_the_one_that_says_more() -> None:
    record = chat(Route(DECODER, named_source=SOURCE.endpoint, no_pull=NoPull.UNREACHABLE))
    assert line(record)["reason"] == "source_unreachable"
    record.alone = "several_prompts"
    assert line(record)["reason"] == "several_prompts"
    record.handoff_lost = "prefill_failed"
    assert line(record)["reason"] == "prefill_failed"


def test_the_line_of_a_path_that_is_not_routed() -> None:
    record = chat(None, method="GET", path="/v1/models", api=None, request_id="", status=200)
    record.ended_s = 100.002
    assert line(record) == {
        "method": "GET",
        "path": "/v1/models",
        "api": None,
        "status": 200,
        "request_id": "",
        "duration_ms": 2.0,
        "ttfb_ms": None,
        "sent_bytes": 0,
        "streaming": False,
        "legs": [],
    }


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str, Any]]:
    return [(entry.levelno, entry.getMessage(), entry.__dict__["fields"]) for entry in caplog.records]


def test_each_exchange_logs_its_line_once_it_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    record = handoff()
    with caplog.at_level(logging.INFO, "sidecar.exchange"):
        with ExchangeLog().exchange(record):
            assert caplog.records == []
        assert told(caplog) == [(logging.INFO, "exchange", line(record))]


def test_an_exchange_that_raises_logs_its_line_and_raises(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sidecar.exchange")
    with pytest.raises(KeyboardInterrupt), ExchangeLog().exchange(chat(None)):
        raise KeyboardInterrupt
    assert [entry.getMessage() for entry in caplog.records] == ["exchange"]


def test_a_lost_handoff_is_a_warning_at_any_level(caplog: pytest.LogCaptureFixture) -> None:
    record = chat(None, handoff_lost="prefill_without_kv_transfer_params")
    with caplog.at_level(logging.WARNING, "sidecar.exchange"), ExchangeLog().exchange(record):
        pass
    assert told(caplog) == [
        (
            logging.WARNING,
            "decoding without a prefiller's blocks: the local engine computes the prompt",
            {"reason": "prefill_without_kv_transfer_params", "request_id": "r-1"},
        )
    ]
